package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/rollout"
)

func choice(t testing.TB, got obj, i int) obj {
	t.Helper()
	choices, ok := got["choices"].([]any)
	require.True(t, ok, got)
	require.Greater(t, len(choices), i)
	return choices[i].(obj)
}

func ids(t testing.TB, v any) []int32 {
	t.Helper()
	list, ok := v.([]any)
	require.True(t, ok, v)
	out := make([]int32, len(list))
	for i, x := range list {
		out[i] = int32(x.(float64))
	}
	return out
}

// An answer that would stop at once goes on for min_tokens.
func TestMinTokens(t *testing.T) {
	s := serveTiny(t, "")
	eos := s.h.stop[0]
	push := obj{"prompt": "the store", "max_tokens": 30, "temperature": 0, "return_token_ids": true, "logit_bias": obj{itoa(eos): 100}}
	status, got := s.post(t, "/v1/completions", push)
	require.Equal(t, 200, status, got)
	require.Equal(t, []int32{eos}, ids(t, choice(t, got, 0)["token_ids"]))
	push["min_tokens"] = 7
	status, got = s.post(t, "/v1/completions", push)
	require.Equal(t, 200, status, got)
	list := ids(t, choice(t, got, 0)["token_ids"])
	require.Len(t, list, 8)
	require.NotContains(t, list[:7], eos)
	require.Equal(t, eos, list[7])
}

func TestAllowedTokens(t *testing.T) {
	s := serveTiny(t, "")
	allowed := []int32{5, 70, 200}
	status, got := s.post(t, "/v1/completions", obj{"prompt": "the store", "max_tokens": 30, "temperature": 2, "seed": 1, "return_token_ids": true, "allowed_token_ids": allowed})
	require.Equal(t, 200, status, got)
	require.Subset(t, allowed, ids(t, choice(t, got, 0)["token_ids"]))
	// What leaves no token is the request's fault.
	status, got = s.post(t, "/v1/completions", obj{"prompt": "x", "max_tokens": 5, "allowed_token_ids": s.h.stop[:1], "min_tokens": 2})
	require.Equal(t, 400, status, got)
}

// vLLM's way to tell tokens of equal text apart.
func TestTokensAsIDs(t *testing.T) {
	s := serveTiny(t, "")
	status, got := s.post(t, "/v1/completions", obj{"prompt": "the store", "max_tokens": 5, "seed": 1, "logprobs": 2, "return_token_ids": true, "return_tokens_as_token_ids": true})
	require.Equal(t, 200, status, got)
	c := choice(t, got, 0)
	lp := c["logprobs"].(obj)
	for i, id := range ids(t, c["token_ids"]) {
		name := "token_id:" + itoa(id)
		require.Equal(t, name, lp["tokens"].([]any)[i])
		require.Equal(t, lp["token_logprobs"].([]any)[i], lp["top_logprobs"].([]any)[i].(obj)[name], "the token is among its alternatives")
	}
	status, got = s.post(t, "/v1/chat/completions", obj{"messages": []obj{{"role": "user", "content": "x"}}, "max_tokens": 3, "logprobs": true, "return_tokens_as_token_ids": true})
	require.Equal(t, 200, status, got)
	first := choice(t, got, 0)["logprobs"].(obj)["content"].([]any)[0].(obj)
	require.True(t, strings.HasPrefix(first["token"].(string), "token_id:"))
	require.Equal(t, []any{}, first["top_logprobs"], "a list even when none are asked for, as clients expect")
}

// A field that is null is one that is absent.
func TestNulls(t *testing.T) {
	s := serveTiny(t, "")
	body := obj{"prompt": "the store", "seed": 1, "max_tokens": 4}
	_, want := s.post(t, "/v1/completions", body)
	for _, name := range []string{"stop", "n", "temperature", "logprobs", "stream", "stream_options", "logit_bias", "structured_outputs", "suffix", "model", "min_tokens", "not_a_field"} {
		body[name] = nil
	}
	status, got := s.post(t, "/v1/completions", body)
	require.Equal(t, 200, status, got)
	require.Equal(t, want["choices"], got["choices"])
	require.Equal(t, "tiny", got["model"], "the served name, when none was asked for")
	require.Regexp(t, "^fp_[0-9a-f]{12}$", got["system_fingerprint"])
}

// Choices of a seed neither repeat each other nor those of the seeds beside it.
func TestSeedsOfChoices(t *testing.T) {
	s := serveTiny(t, "")
	seen := map[string]bool{}
	for seed := range 3 {
		_, got := s.post(t, "/v1/completions", obj{"prompt": "the", "n": 3, "seed": seed, "temperature": 5, "max_tokens": 12})
		for i := range 3 {
			text := choice(t, got, i)["text"].(string)
			require.False(t, seen[text], text)
			seen[text] = true
		}
	}
}

func TestPriority(t *testing.T) {
	p, err := (&Common{Priority: ptr(-3)}).check(nil, 10)
	require.NoError(t, err)
	require.Equal(t, 3, p.priority, "vLLM's lower ones go first, the engine's higher ones")
	s := serveTiny(t, "")
	req, err := s.h.request(&job{prompt: []int32{1}, p: p}, 0)
	require.NoError(t, err)
	require.Equal(t, 3, req.Priority)
}

// Without max_tokens the default is cut to what fits.
func TestDefaultLength(t *testing.T) {
	s := serveTiny(t, "")
	prompt := make([]int32, 508)
	for i := range prompt {
		prompt[i] = 5
	}
	status, got := s.post(t, "/v1/completions", obj{"prompt": prompt, "ignore_eos": true})
	require.Equal(t, 200, status, got)
	require.EqualValues(t, 4, got["usage"].(obj)["completion_tokens"])
	require.Equal(t, "length", choice(t, got, 0)["finish_reason"])
}

func TestStopReasons(t *testing.T) {
	s := serveTiny(t, "")
	_, free := s.post(t, "/v1/completions", obj{"prompt": "the store sells", "temperature": 0, "max_tokens": 30, "return_token_ids": true})
	text, list := choice(t, free, 0)["text"].(string), ids(t, choice(t, free, 0)["token_ids"])
	require.Greater(t, len(text), 8)
	stop := text[3:6]
	at := strings.Index(text, stop)
	for _, stream := range []bool{false, true} {
		for _, include := range []bool{false, true} {
			want := text[:at]
			if include {
				want += stop
			}
			body := obj{"prompt": "the store sells", "temperature": 0, "max_tokens": 30, "stop": []string{stop, "never seen"}, "include_stop_str_in_output": include}
			var c obj
			if stream {
				c = s.stream(t, body)
			} else {
				_, got := s.post(t, "/v1/completions", body)
				c = choice(t, got, 0)
			}
			require.Equal(t, want, c["text"], "stream %v include %v", stream, include)
			require.Equal(t, "stop", c["finish_reason"])
			require.Equal(t, stop, c["stop_reason"])
		}
	}
	_, got := s.post(t, "/v1/completions", obj{"prompt": "the store sells", "temperature": 0, "max_tokens": 30, "stop_token_ids": []int32{list[2]}})
	require.Equal(t, "stop", choice(t, got, 0)["finish_reason"])
	require.EqualValues(t, list[2], choice(t, got, 0)["stop_reason"])
}

// The bytes of a character that several tokens make are counted once.
func TestTextOffsets(t *testing.T) {
	s := serveTiny(t, "")
	const text = "aé☃ b"
	prompt := s.h.encodePrompt(text, false)
	status, got := s.post(t, "/v1/completions", obj{"prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 1, "temperature": 0})
	require.Equal(t, 200, status, got)
	lp := choice(t, got, 0)["logprobs"].(obj)
	offsets := lp["text_offset"].([]any)
	require.EqualValues(t, len([]rune(text)), offsets[len(prompt)], "the completion begins after the prompt's characters")
	require.True(t, strings.HasPrefix(choice(t, got, 0)["text"].(string), text))
}

// A prompt of one token has no logprob to give, and is still echoed.
func TestEchoOfOneToken(t *testing.T) {
	s := serveTiny(t, "")
	status, got := s.post(t, "/v1/completions", obj{"prompt": []int32{70}, "echo": true, "logprobs": 1, "max_tokens": 0})
	require.Equal(t, 200, status, got)
	require.Equal(t, []any{nil}, choice(t, got, 0)["logprobs"].(obj)["token_logprobs"])
}

// unscoring hides that a decoder scores.
type unscoring struct{ decoder }

func TestEchoNeedsAScorer(t *testing.T) {
	s := serveWith(t, setup{wrap: func(d decoder) decoder { return unscoring{d} }})
	status, got := s.post(t, "/v1/completions", obj{"prompt": "the store", "echo": true, "logprobs": 1, "max_tokens": 0})
	require.Equal(t, 400, status, got)
	require.Contains(t, got["error"].(obj)["message"], rollout.ErrNoScores.Error())
	status, got = s.post(t, "/v1/completions", obj{"prompt": "the store", "echo": true, "max_tokens": 1})
	require.Equal(t, 200, status, got)
}

func TestChatTemplateKwargs(t *testing.T) {
	s := serveTiny(t, "")
	user := []obj{{"role": "user", "content": "x"}}
	for want, body := range map[string]obj{
		`does not read "enable_thinking"`:   {"messages": user, "chat_template_kwargs": obj{"enable_thinking": false}},
		`does not read "reasoning_effort"`:  {"messages": user, "reasoning_effort": "low"},
		`"messages" has a field of its own`: {"messages": user, "chat_template_kwargs": obj{"messages": []obj{}}},
	} {
		status, got := s.post(t, "/v1/chat/completions", body)
		require.Equal(t, 400, status, got)
		require.Contains(t, got["error"].(obj)["message"], want)
	}
}
