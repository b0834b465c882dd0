package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

type decoder = model.Decoder

func itoa(id int32) string { return strconv.Itoa(int(id)) }

// stream asks for a completion in pieces and joins them to one choice.
func (s *served) stream(t testing.TB, body obj) obj {
	t.Helper()
	body["stream"] = true
	data, err := json.Marshal(body)
	require.NoError(t, err)
	resp, err := http.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(data))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	out, text, done := obj{}, "", false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		piece, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			require.Empty(t, lines.Text())
			continue
		}
		if done = piece == "[DONE]"; done {
			continue
		}
		var chunk obj
		require.NoError(t, json.Unmarshal([]byte(piece), &chunk), piece)
		c := choice(t, chunk, 0)
		text += c["text"].(string)
		for k, v := range c {
			if v != nil {
				out[k] = v
			}
		}
	}
	require.NoError(t, lines.Err())
	require.True(t, done, "[DONE] ends a stream")
	out["text"] = text
	return out
}

func TestTimeout(t *testing.T) {
	s := serveWith(t, setup{timeout: time.Nanosecond})
	for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
		body := obj{"prompt": "x", "max_tokens": 400}
		if path == "/v1/embeddings" {
			body = obj{"input": "x"}
		}
		status, got := s.post(t, path, body)
		require.Equal(t, http.StatusGatewayTimeout, status, got)
		require.Contains(t, got["error"].(obj)["message"], "longer than the server's limit of 1ns")
	}
}

func TestMethodsAndBodies(t *testing.T) {
	s := serveTiny(t, "")
	resp, err := http.Get(s.URL + "/v1/chat/completions")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	require.Equal(t, "POST", resp.Header.Get("Allow"))
	status, got := s.raw(t, "/v1/completions", append(bytes.Repeat([]byte(" "), MaxBody), '{', '}'))
	require.Equal(t, http.StatusRequestEntityTooLarge, status, got)
	for want, body := range map[string]string{
		"n must not be a JSON string (want an integer of int)": `{"prompt": "x", "n": "two"}`,
		"stop must be a string or a list":                      `{"prompt": "x", "stop": 7}`,
		"structured_outputs.structural_tag is not supported":   `{"prompt": "x", "structured_outputs": {"structural_tag": "x"}}`,
		"give exactly one of json":                             `{"prompt": "x", "structured_outputs": {}}`,
		"stream_options.continuous_usage_stats is not":         `{"prompt": "x", "stream": true, "stream_options": {"continuous_usage_stats": true}}`,
		"min_tokens is 9, want 0 to 5":                         `{"prompt": "x", "min_tokens": 9, "max_tokens": 5}`,
		"min_tokens cannot be given with stop":                 `{"prompt": "x", "min_tokens": 2, "stop": "a"}`,
		"min_tokens cannot be given for an answer":             `{"prompt": "x", "min_tokens": 2, "structured_outputs": {"regex": "a"}}`,
		"ignore_eos cannot be given for an answer":             `{"prompt": "x", "ignore_eos": true, "structured_outputs": {"json_object": true}}`,
		"allowed_token_ids is empty":                           `{"prompt": "x", "allowed_token_ids": []}`,
		"allowed_token_ids holds 99999":                        `{"prompt": "x", "allowed_token_ids": [99999]}`,
		"logprobs_mode sampled gives no alternatives":          `{"prompt": "x", "logprobs": 2, "logprobs_mode": "sampled"}`,
		"make 2560 answers, at most 2048":                      `{"prompt": [` + strings.Repeat(`"x",`, 19) + `"x"], "n": 128, "max_tokens": 1}`,
		"prompt is missing":                                    `{"prompt": null}`,
	} {
		status, got := s.raw(t, "/v1/completions", []byte(body))
		require.Equal(t, 400, status, "%s: %v", body, got)
		require.Contains(t, got["error"].(obj)["message"], want)
		require.Equal(t, "invalid_request_error", got["error"].(obj)["type"])
	}
	status, got = s.post(t, "/v1/completions", obj{"prompt": make([]int32, 600)})
	require.Equal(t, 400, status)
	require.Equal(t, "context_length_exceeded", got["error"].(obj)["code"])
	require.Equal(t, "prompt", got["error"].(obj)["param"])
}

// One request with many more answers than slots keeps to its share, and comes
// back whole and in order.
func TestManyAnswers(t *testing.T) {
	s := serveTiny(t, "") // 8 slots, 64 may wait: 200 at once would be refused
	prompts := make([]string, 40)
	for i := range prompts {
		prompts[i] = fmt.Sprintf("item %d", i)
	}
	body := obj{"prompt": prompts, "n": 5, "max_tokens": 3, "seed": 1, "return_token_ids": true, "ignore_eos": true}
	status, got := s.post(t, "/v1/completions", body)
	require.Equal(t, 200, status, got)
	require.Len(t, got["choices"], 200)
	for i := range 200 {
		c := choice(t, got, i)
		require.EqualValues(t, i, c["index"])
		require.Equal(t, s.h.encodePrompt(prompts[i/5], true), ids(t, c["prompt_token_ids"]))
		require.Len(t, c["token_ids"], 3)
	}
	usage := got["usage"].(obj)
	require.LessOrEqual(t, usage["prompt_tokens_details"].(obj)["cached_tokens"], usage["prompt_tokens"])
}

func TestBusy(t *testing.T) {
	release := make(chan struct{})
	s := serveWith(t, setup{waiting: 1, wrap: func(d decoder) decoder { return slowDecoder{d, release} }})
	var wg sync.WaitGroup
	for range 9 { // 8 slots and one that waits
		wg.Go(func() {
			status, got := s.post(t, "/v1/completions", obj{"prompt": "the", "max_tokens": 2})
			if status != 200 {
				t.Error(got)
			}
		})
	}
	require.Eventually(t, func() bool { st := s.engine.Stats(); return st.Active+st.Waiting == 9 }, deadline, tick)
	req, err := http.NewRequest("POST", s.URL+"/v1/completions", strings.NewReader(`{"prompt": "x"}`))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	close(release)
	wg.Wait()
}

// slowDecoder decodes once released.
type slowDecoder struct {
	decoder
	release chan struct{}
}

func (d slowDecoder) Decode(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, error) {
	select {
	case <-d.release:
	case <-ctx.Done():
	}
	return d.decoder.Decode(ctx, rows, n)
}

// A client that leaves a whole answer, not only a stream, frees its slots too.
func TestLeavingClient(t *testing.T) {
	release := make(chan struct{})
	s := serveWith(t, setup{wrap: func(d decoder) decoder { return slowDecoder{d, release} }})
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/completions", strings.NewReader(`{"prompt": "the", "n": 4, "max_tokens": 400, "ignore_eos": true}`))
	require.NoError(t, err)
	left := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	require.Eventually(t, func() bool { return s.engine.Stats().Waiting+s.engine.Stats().Active == 4 }, deadline, tick)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	close(release)
	require.Eventually(t, func() bool { st := s.engine.Stats(); return st.Active == 0 && st.Failed == 4 }, deadline, tick)
}

// A stream whose reader stalls ends when the connection gives up; the engine is
// not held up by it.
func TestStalledReader(t *testing.T) {
	s := serveTiny(t, "")
	w := &brokenWriter{header: http.Header{}}
	req := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"prompt": "the", "max_tokens": 400, "ignore_eos": true, "stream": true}`))
	s.h.ServeHTTP(w, req) // returns
	require.Eventually(t, func() bool { return s.engine.Stats().Active == 0 }, deadline, tick)
	require.Less(t, s.engine.Stats().Generated, uint64(400), "nobody reads the rest")
}

// brokenWriter is a connection that takes three pieces.
type brokenWriter struct {
	header http.Header
	n      int
}

func (b *brokenWriter) Header() http.Header { return b.header }
func (b *brokenWriter) WriteHeader(int)     {}
func (b *brokenWriter) Flush()              {}
func (b *brokenWriter) Write(p []byte) (int, error) {
	if b.n++; b.n > 3 {
		return 0, errors.New("write deadline")
	}
	return len(p), nil
}

// Many clients of every endpoint, while adapters come, change and go: what is
// answered is right or refused for a stated reason, and nothing is left behind.
func TestConcurrentClients(t *testing.T) {
	root := t.TempDir()
	s := serveWith(t, setup{root: root, waiting: 1000})
	s.saveAdapter(t, filepath.Join(root, "one"), 1)
	s.saveAdapter(t, filepath.Join(root, "two"), 2)
	base := obj{"prompt": "the store sells", "max_tokens": 8, "temperature": 0}
	_, want := s.post(t, "/v1/completions", base)
	var wg sync.WaitGroup
	for k := range 2 {
		wg.Go(func() { // the one who swaps adapters
			name := []string{"a", "b"}[k]
			for i := range 12 {
				path := []string{"one", "two"}[i%2]
				if status, got := s.post(t, "/v1/load_lora_adapter", obj{"lora_name": name, "lora_path": path, "load_inplace": i%3 == 1}); status != 200 && status != 400 {
					t.Errorf("load: %d %v", status, got)
				}
				if i%3 == 2 {
					if status, got := s.post(t, "/v1/unload_lora_adapter", obj{"lora_name": name}); status != 200 {
						t.Errorf("unload: %d %v", status, got)
					}
				}
			}
		})
	}
	for k := range 12 {
		wg.Go(func() {
			for i := range 8 {
				body := obj{"prompt": fmt.Sprint("item ", k, i), "max_tokens": 6, "n": 2, "logprobs": 1, "seed": k}
				switch (k + i) % 6 {
				case 0: // greedy, so that the answer is known whoever else is served
					status, got := s.post(t, "/v1/completions", base)
					if status != 200 || choice(t, got, 0)["text"] != choice(t, want, 0)["text"] {
						t.Errorf("base: %d %v", status, got)
					}
					continue
				case 1:
					body["model"] = []string{"a", "b"}[k%2]
				case 2:
					body["echo"] = true
				case 3:
					body["structured_outputs"] = obj{"regex": "[a-z]{2,4}"}
				case 4:
					if status, got := s.post(t, "/v1/embeddings", obj{"input": []string{"x", "y"}}); status != 200 {
						t.Errorf("embeddings: %d %v", status, got)
					}
					continue
				}
				status, got := s.post(t, "/v1/completions", body)
				if status != 200 && !(status == 404 && body["model"] != nil) {
					t.Errorf("%v: %d %v", body, status, got)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range s.engine.Adapters() {
		status, got := s.post(t, "/v1/unload_lora_adapter", obj{"lora_name": name})
		require.Equal(t, 200, status, got)
	}
	require.Len(t, s.h.cards(), 2, "the model and the encoder")
	st := s.engine.Stats()
	require.Zero(t, st.Active+st.Waiting)
	status, got := s.post(t, "/v1/completions", base)
	require.Equal(t, 200, status)
	require.Equal(t, want["choices"], got["choices"])
}

// Whatever is sent is answered: with a result, or with an error that says why.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"prompt":[[1,2],[3]],"stop":["a"],"logit_bias":{"1":2},"stream_options":{"include_usage":true},"stream":true,"max_tokens":3}`,
		`{"prompt":"x","n":1e9,"seed":-9223372036854775808}`,
		`{"prompt":"é","echo":true,"logprobs":3,"max_tokens":2,"temperature":0,"return_token_ids":true}`,
		`{"prompt":"x","structured_outputs":{"json":{"type":"object","properties":{"a":{"enum":[1,null]}}}},"max_tokens":9}`,
		`{"prompt":"x","guided_regex":"(a|b)+","min_tokens":0,"frequency_penalty":1,"max_tokens":5,"top_k":2,"min_p":0.1}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"logprobs":true,"top_logprobs":2,"max_tokens":4}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"5"}],"max_tokens":4,"n":2}`,
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required","max_tokens":9,"stream":true}`,
		`{"messages":[{"role":"system","content":null}],"response_format":{"type":"json_object"},"max_tokens":9}`,
		`{"input":["a","b"],"encoding_format":"base64"}`, `{"tokens":[1,2,99999]}`, `{"lora_name":"x","lora_path":"../.."}`,
		`[]`, `null`, `{"prompt":`, `{"prompt":"x","prompt":"y","max_tokens":1}`,
	} {
		f.Add([]byte(body))
	}
	s := serveWith(f, setup{root: f.TempDir()})
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte(`"n"`)) && len(body) > 400 {
			t.Skip("many long answers: right, and slow")
		}
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"} {
			w := httptest.NewRecorder()
			s.h.ServeHTTP(w, httptest.NewRequest("POST", path, bytes.NewReader(body)))
			got := w.Body.Bytes()
			switch {
			case w.Code == 200 && w.Header().Get("Content-Type") == "text/event-stream":
				require.True(t, bytes.HasSuffix(got, []byte("data: [DONE]\n\n")))
			case w.Code == 200:
				require.True(t, json.Valid(got), "%s", got)
			default:
				var e struct{ Error Error }
				require.NoError(t, json.Unmarshal(got, &e), "%s", got)
				require.NotEmpty(t, e.Error.Message)
				require.Less(t, w.Code, 500, "%s: %s gives %s", path, body, got)
			}
		}
	})
}
