package openai

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

func (s *served) client() openai.Client {
	return openai.NewClient(option.WithBaseURL(s.URL+"/v1"), option.WithAPIKey("unused"), option.WithMaxRetries(0))
}

// The official client, and what it gets is what the engine generates.
func TestCompletionsOfficialClient(t *testing.T) {
	s := serveTiny(t, "")
	ctx := context.Background()
	prompt := s.h.encodePrompt("What does the store sell", true)
	want, err := s.engine.Generate(ctx, rollout.GenerateRequest{Prompt: prompt, MaxNew: 12, Stop: s.h.stop, Sampling: model.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 5}, Raw: true, Top: 2})
	require.NoError(t, err)

	c := s.client()
	got, err := c.Completions.New(ctx, openai.CompletionNewParams{
		Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("What does the store sell")},
		MaxTokens: openai.Int(12), Seed: openai.Int(5), Temperature: openai.Float(1), Logprobs: openai.Int(2),
	}, option.WithJSONSet("return_token_ids", true))
	require.NoError(t, err)
	require.Equal(t, want.Text, got.Choices[0].Text)
	require.Equal(t, int64(len(prompt)), got.Usage.PromptTokens)
	require.Equal(t, int64(len(want.IDs)), got.Usage.CompletionTokens)
	require.Len(t, got.Choices[0].Logprobs.TokenLogprobs, len(want.IDs))
	for i, lp := range want.Raw {
		require.InDelta(t, lp, got.Choices[0].Logprobs.TokenLogprobs[i], 1e-6)
	}
	var ids, promptIDs []int32
	require.NoError(t, json.Unmarshal([]byte(got.Choices[0].JSON.ExtraFields["token_ids"].Raw()), &ids))
	require.NoError(t, json.Unmarshal([]byte(got.Choices[0].JSON.ExtraFields["prompt_token_ids"].Raw()), &promptIDs))
	require.Equal(t, want.IDs, ids)
	require.Equal(t, prompt, promptIDs)

	// Streamed, the pieces are the same answer.
	stream := c.Completions.NewStreaming(ctx, openai.CompletionNewParams{
		Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("What does the store sell")},
		MaxTokens: openai.Int(12), Seed: openai.Int(5), Temperature: openai.Float(1), Logprobs: openai.Int(2),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}, option.WithJSONSet("return_token_ids", true))
	text, reason := "", ""
	var streamed []int32
	var usage openai.CompletionUsage
	for stream.Next() {
		chunk := stream.Current()
		usage = chunk.Usage
		for _, ch := range chunk.Choices {
			text += ch.Text
			reason += string(ch.FinishReason)
			var part []int32
			if f := ch.JSON.ExtraFields["token_ids"]; f.Raw() != "" {
				require.NoError(t, json.Unmarshal([]byte(f.Raw()), &part))
			}
			streamed = append(streamed, part...)
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, want.Text, text)
	require.Equal(t, want.IDs, streamed)
	require.Equal(t, string(got.Choices[0].FinishReason), reason)
	require.Equal(t, got.Usage.TotalTokens, usage.TotalTokens)
}

// Token ids in, several prompts and choices; a seed gives the same again.
func TestCompletionsTokenPrompts(t *testing.T) {
	s := serveTiny(t, "")
	a, b := s.h.encodePrompt("the store", true), s.h.encodePrompt("price of", true)
	body := obj{"prompt": [][]int32{a, b}, "n": 2, "max_tokens": 6, "seed": 3, "temperature": 5, "return_token_ids": true}
	status, one := s.post(t, "/v1/completions", body)
	require.Equal(t, 200, status, one)
	_, two := s.post(t, "/v1/completions", body)
	require.Equal(t, one["choices"], two["choices"])
	choices := one["choices"].([]any)
	require.Len(t, choices, 4)
	require.NotEqual(t, choices[0].(obj)["token_ids"], choices[1].(obj)["token_ids"])
	for i, c := range choices {
		require.EqualValues(t, i, c.(obj)["index"])
	}
	require.Len(t, choices[2].(obj)["prompt_token_ids"], len(b))
}

// lm-eval's way to score: the prompt is echoed with its logprobs.
func TestCompletionsEchoScores(t *testing.T) {
	s := serveTiny(t, "")
	ids := s.h.encodePrompt("the store sells apples", true)
	status, got := s.post(t, "/v1/completions", obj{"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 0, "temperature": 0})
	require.Equal(t, 200, status, got)
	lp := got["choices"].([]any)[0].(obj)["logprobs"].(obj)
	require.Len(t, lp["tokens"], len(ids))
	require.Nil(t, lp["token_logprobs"].([]any)[0])
	require.Nil(t, lp["top_logprobs"].([]any)[0])
	want, err := s.engine.Score(context.Background(), rollout.ScoreRequest{Tokens: ids, Top: 1})
	require.NoError(t, err)
	for i, v := range want.Logprobs {
		require.InDelta(t, v, lp["token_logprobs"].([]any)[i+1], 1e-6)
		// The likeliest token, and the one that stands there, as OpenAI does.
		top := lp["top_logprobs"].([]any)[i+1].(obj)
		require.InDelta(t, v, top[lp["tokens"].([]any)[i+1].(string)], 1e-6)
		require.InDelta(t, want.Top[i][0].Logprob, top[s.h.tokenText(want.Top[i][0].ID)], 1e-6)
		require.LessOrEqual(t, len(top), 2)
	}
	// One more token follows, as lm-eval asks when max_tokens must be positive.
	_, more := s.post(t, "/v1/completions", obj{"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0})
	require.Len(t, more["choices"].([]any)[0].(obj)["logprobs"].(obj)["tokens"], len(ids)+1)
}

func TestCompletionsStops(t *testing.T) {
	s := serveTiny(t, "")
	_, free := s.post(t, "/v1/completions", obj{"prompt": "the store", "max_tokens": 40, "temperature": 0})
	text := free["choices"].([]any)[0].(obj)["text"].(string)
	require.Greater(t, len(text), 6)
	stop := text[3:6]
	_, cut := s.post(t, "/v1/completions", obj{"prompt": "the store", "max_tokens": 40, "temperature": 0, "stop": stop})
	c := cut["choices"].([]any)[0].(obj)
	require.Equal(t, "stop", c["finish_reason"])
	require.Equal(t, stop, c["stop_reason"])
	require.NotContains(t, c["text"], stop)
	_, kept := s.post(t, "/v1/completions", obj{"prompt": "the store", "max_tokens": 40, "temperature": 0, "stop": []string{stop}, "include_stop_str_in_output": true})
	require.Equal(t, c["text"].(string)+stop, kept["choices"].([]any)[0].(obj)["text"])
}

// Each bad request is refused with its own reason, and the server goes on.
func TestCompletionsRefusals(t *testing.T) {
	s := serveTiny(t, "")
	long := make([]int32, 600)
	for _, c := range []struct {
		body   obj
		status int
		want   string
	}{
		{obj{"prompt": "x", "model": "other"}, 404, `model "other" is not served here; served are tiny`},
		{obj{"prompt": "x", "beam_width": 4}, 400, "beam_width is not supported"},
		{obj{"prompt": "x", "temperature": -1}, 400, "temperature is -1"},
		{obj{"prompt": "x", "temperature": "hot"}, 400, "temperature must not be a JSON string"},
		{obj{"prompt": "x", "top_p": 0}, 400, "top_p is 0"},
		{obj{"prompt": "x", "n": 0}, 400, "n is 0"},
		{obj{"prompt": "x", "n": 1000}, 400, "n is 1000"},
		{obj{"prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"},
		{obj{"prompt": long, "max_tokens": 5}, 400, "the prompt has 600 tokens and the context limit is 512"},
		{obj{"prompt": long[:510], "max_tokens": 5}, 400, "a prompt of 510 tokens and 5 new ones, limit 512"},
		{obj{"prompt": []int32{1, 99999}}, 400, "token id 99999 at 1 is outside the vocabulary"},
		{obj{"prompt": []int32{}}, 400, "an empty list"},
		{obj{"prompt": [][]int32{{}}}, 400, "no tokens"},
		{obj{}, 400, "prompt is missing"},
		{obj{"prompt": 7}, 400, "prompt must be"},
		{obj{"prompt": "x", "suffix": "y"}, 400, "suffix is not supported"},
		{obj{"prompt": "x", "best_of": 4}, 400, "best_of is 4"},
		{obj{"prompt": "x", "echo": true, "stream": true}, 400, "echo cannot be streamed"},
		{obj{"prompt": "x", "logit_bias": obj{"apple": 1}}, 400, `logit_bias key "apple"`},
		{obj{"prompt": "x", "logit_bias": obj{"3": 900}}, 400, "logit_bias of token 3 is 900"},
		{obj{"prompt": "x", "stop": ""}, 400, "stop string has 0 bytes"},
		{obj{"prompt": "x", "logprobs": 99}, 400, "logprobs is 99"},
		{obj{"prompt": "x", "stream_options": obj{"include_usage": true}}, 400, "stream_options needs stream"},
		{obj{"prompt": "x", "min_policy_version": 9}, 409, "need at least 9, serving 0"},
		{obj{"prompt": "x", "logprobs_mode": "odd"}, 400, `logprobs_mode "odd"`},
	} {
		status, got := s.post(t, "/v1/completions", c.body)
		require.Equal(t, c.status, status, "%v: %v", c.body, got)
		require.Contains(t, got["error"].(obj)["message"], c.want)
	}
	status, got := s.raw(t, "/v1/completions", []byte(`[1,`))
	require.Equal(t, 400, status)
	require.Contains(t, got["error"].(obj)["message"], "not a JSON object")
	status, got = s.post(t, "/v1/nothing", obj{})
	require.Equal(t, 404, status)
	require.Contains(t, got["error"].(obj)["message"], "POST /v1/nothing")
	status, _ = s.post(t, "/v1/completions", obj{"prompt": "x", "max_tokens": 1})
	require.Equal(t, 200, status)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"prompt":[[1,2],[3]],"stop":["a"],"logit_bias":{"1":2},"stream_options":{"include_usage":true},"stream":true}`))
	f.Add([]byte(`{"prompt":"x","n":1e9,"seed":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req CompletionRequest
		if json.Unmarshal(data, &req) == nil {
			_, _ = req.check(req.MaxTokens, 100)
		}
		var chat ChatRequest
		if json.Unmarshal(data, &chat) == nil {
			_, _ = chat.check(chat.MaxTokens, 100)
			_, _, _ = chat.toolChoice()
			_ = chat.checkTools()
		}
	})
}
