package remote

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// Answers that contradict the request or themselves are errors.
func TestWrongAnswers(t *testing.T) {
	m := testModel(t)
	for name, c := range map[string]struct {
		change func(map[string]any)
		want   string
	}{
		"other ids":      {func(a map[string]any) { choice(a)["token_ids"] = []int{9, 9, 9, 7} }, "are not those of its logprobs"},
		"prompt changed": {func(a map[string]any) { choice(a)["prompt_token_ids"] = []int{0, 1, 2} }, "another prompt"},
		"prompt longer": {func(a map[string]any) {
			delete(choice(a), "prompt_token_ids")
			a["usage"] = map[string]any{"prompt_tokens": 3}
		}, "prompt of 3 tokens, sent were 2"},
		"null logprob": {func(a map[string]any) {
			logprobs(a)["token_logprobs"].([]float64)[1] = 0
			logprobs(a)["token_logprobs"] = []any{-1, nil, -1, -1}
		}, "token 1 has no logprob"},
		"few logprobs": {func(a map[string]any) { logprobs(a)["token_logprobs"] = []any{-1, -1, -1} }, "4 tokens and 3 logprobs"},
		"high logprob": {func(a map[string]any) { logprobs(a)["token_logprobs"] = []any{-1, 2, -1, -1} }, "logprob of token 1 is 2"},
		"aborted":      {func(a map[string]any) { choice(a)["finish_reason"] = "abort" }, `finish_reason is "abort"`},
		"early length": {func(a map[string]any) { choice(a)["finish_reason"] = "length" }, "ends for its length"},
		"no choice":    {func(a map[string]any) { a["choices"] = []any{} }, "0 choices"},
		"empty":        {func(a map[string]any) { emit(a); logprobs(a)["token_logprobs"] = []any{} }, "no tokens"},
		"beyond stop":  {func(a map[string]any) { emit(a, 7, 8, 9, 7) }, "after the stop token 7"},
		"other stop":   {func(a map[string]any) { emit(a, 8, 8, 9, 10) }, "none of the stop tokens"},
		"beyond vocab": {func(a map[string]any) { emit(a, 1<<30, 8, 9, 7) }, "the vocabulary has"},
		"more than asked": {func(a map[string]any) {
			emit(a, 1, 2, 3, 4, 5, 6, 7)
			logprobs(a)["token_logprobs"] = []any{-1, -1, -1, -1, -1, -1, -1}
		}, "7 tokens, 6 were asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			e := f.engine(t, m, nil)
			f.set(func() { f.change = c.change })
			_, err := e.Generate(t.Context(), ask(1, 2))
			require.ErrorContains(t, err, c.want)
			require.Equal(t, 2, f.count("/v1/completions"), "a wrong answer is not asked for again")
			require.EqualValues(t, 1, e.Stats().Failed)
		})
	}
}

func logprobs(a map[string]any) map[string]any { return choice(a)["logprobs"].(map[string]any) }

// emit makes an answer's ids these, in both places.
func emit(a map[string]any, ids ...int32) {
	names := (&fakeServer{}).vllmAnswer(nil, ids, nil, "stop")
	choice(a)["token_ids"], logprobs(a)["tokens"] = append([]int32{}, ids...), logprobs(names)["tokens"]
}

func TestFailuresAreRepeatedWhereSafe(t *testing.T) {
	m := testModel(t)
	cut := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`{"choices":[{"token_ids":[1,2`))
	}
	for name, c := range map[string]struct {
		fail  func(w http.ResponseWriter)
		calls int // after one that fails every time
		want  string
	}{
		"500":      {func(w http.ResponseWriter) { refuse(w, 500, "engine is dead") }, 3, "engine is dead"},
		"503":      {func(w http.ResponseWriter) { refuse(w, 503, "starting") }, 3, "3 attempts"},
		"429":      {func(w http.ResponseWriter) { refuse(w, 429, "busy") }, 3, "busy"},
		"cut":      {cut, 3, "broke off after"},
		"dropped":  {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 3, "does not answer"},
		"400":      {func(w http.ResponseWriter) { refuse(w, 400, "bad temperature") }, 1, "bad temperature"},
		"overflow": {func(w http.ResponseWriter) { refuse(w, 400, "This model's maximum context length is 12 tokens") }, 1, "exceeds the context"},
		"redirect": {func(w http.ResponseWriter) { w.Header().Set("Location", "http://127.0.0.1:1/"); w.WriteHeader(302) }, 1, "HTTP 302"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			e := f.engine(t, m, nil)
			first := f.count("/v1/completions")
			f.set(func() {
				f.fault = func(int, http.ResponseWriter, *http.Request) bool { return false }
				f.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/v1/completions" {
						c.fail(w)
						return true
					}
					return false
				}
			})
			_, err := e.Generate(t.Context(), ask(1))
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.calls, f.count("/v1/completions")-first)
			if c.calls == 1 {
				return
			}
			// Once is no failure.
			before := f.count("/v1/completions")
			f.set(func() {
				f.fault = func(n int, w http.ResponseWriter, _ *http.Request) bool {
					if n == before+1 {
						c.fail(w)
					}
					return n == before+1
				}
			})
			_, err = e.Generate(t.Context(), ask(1))
			require.NoError(t, err)
			require.NotZero(t, e.s.Retried())
		})
	}
}

// Repeating what took too long would prefer short answers.
func TestHangIsNotRepeated(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	first := f.count("/v1/completions")
	f.set(func() { f.hold = make(chan struct{}) })
	_, err := e.Generate(t.Context(), ask(1))
	require.ErrorContains(t, err, "no answer within 50ms")
	require.Equal(t, 1, f.count("/v1/completions")-first)
	f.set(func() { f.hold = nil })
}

func TestAdapterFaults(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, func(c *Config) { c.AdapterTimeout = 300 * time.Millisecond })
	load := func(answer func(http.ResponseWriter, *http.Request)) {
		f.set(func() {
			f.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/v1/load_lora_adapter" {
					answer(w, r)
					return true
				}
				return false
			}
		})
	}
	a := testAdapter(t, m, 0.1)
	load(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 400, "rank 2 is greater than max_lora_rank") })
	require.ErrorContains(t, e.SetPolicy(1, a), "max_lora_rank")
	load(func(http.ResponseWriter, *http.Request) {})
	require.ErrorContains(t, e.SetPolicy(1, a), "is not listed")
	load(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	require.ErrorContains(t, e.SetPolicy(1, a), "was not loaded within 300ms")
	require.EqualValues(t, 0, e.Version(), "the old policy stays")
	g, err := e.Generate(t.Context(), ask(1))
	require.NoError(t, err)
	require.EqualValues(t, 0, g.Versions[0].Version)
	f.set(func() { f.fault = nil })
	require.NoError(t, e.SetPolicy(1, a))
}

func TestLlamaCPP(t *testing.T) {
	m := testModel(t)
	f := newFake(t, true)
	e := f.engine(t, m, nil)
	g, err := e.Generate(t.Context(), ask(1, 2))
	require.NoError(t, err)
	require.Len(t, g.IDs, 4)
	require.Equal(t, rollout.FinishStop, g.Finish)
	require.Equal(t, false, f.bodies[len(f.bodies)-1]["post_sampling_probs"], "the model's own distribution is sampled from")
	req := ask(1, 2)
	req.Sampling = model.Sampling{Temperature: 0.5, TopP: 0.9}
	g, err = e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.InDelta(t, -0.6931, g.Logprobs[0], 1e-3)
	require.Equal(t, true, f.bodies[len(f.bodies)-1]["post_sampling_probs"])

	a := testAdapter(t, m, 0.1)
	require.ErrorContains(t, e.SetPolicy(1, a), "start it with --lora")
	f.set(func() { f.adapters[adapterName("demo", 1, a)] = "" })
	require.NoError(t, e.SetPolicy(1, a))
	_, err = e.Generate(t.Context(), ask(1, 2))
	require.NoError(t, err)
	require.Equal(t, []any{map[string]any{"id": 0.0, "scale": 1.0}}, f.bodies[len(f.bodies)-1]["lora"])
	_, err = e.s.ForRun(t.Context(), "demo", m, 256, true)
	require.ErrorIs(t, err, ErrNoFollow)

	for want, change := range map[string]func(map[string]any){
		"no tokens":                   func(a map[string]any) { a["tokens"] = []int{} },
		"no completion_probabilities": func(a map[string]any) { delete(a, "completion_probabilities") },
		"ends inside a character":     func(a map[string]any) { a["completion_probabilities"] = a["completion_probabilities"].([]any)[:3] },
		"its logprob is of":           func(a map[string]any) { a["tokens"] = []int{1, 2, 3, 4} },
		"tokens_evaluated":            func(a map[string]any) { a["tokens_evaluated"] = 5 },
		"exceeds the context":         func(a map[string]any) { a["truncated"] = true },
	} {
		f.set(func() { f.change = change })
		_, err := e.Generate(context.Background(), ask(1, 2))
		require.ErrorContains(t, err, want)
	}
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig("vllm=http://h:8000/,capacity=64,price=0.5,adapters=/a,adapters-there=/b,model=m,timeout=3m,attempts=2")
	require.NoError(t, err)
	require.Equal(t, "vllm=http://h:8000", c.String())
	require.Equal(t, 64, c.Capacity)
	require.Equal(t, 0.5, c.Price)
	require.Equal(t, "/b", c.AdaptersThere)
	require.Equal(t, 3*time.Minute, c.Timeout)
	for in, want := range map[string]string{
		"http://h":                       "write it as KIND=URL",
		"vllm":                           "write it as KIND=URL",
		"tgi=http://h":                   `kind "tgi"`,
		"vllm=h:8000":                    "http://HOST:PORT",
		"vllm=http://h/v1":               "leave out /v1",
		"vllm=http://user:pw@h":          "--engine-key-file",
		"vllm=http://h,capacity=0":       "capacity is 0",
		"vllm=http://h,capacity=x":       `"capacity=x"`,
		"vllm=http://h,price=-1":         "price is -1",
		"vllm=http://h,price=NaN":        "price is NaN",
		"vllm=http://h,colour=red":       "unknown key",
		"vllm=http://h,timeout=0s":       "timeout is 0s",
		"vllm=http://h,adapters-there=/": "without adapters",
	} {
		_, err := ParseConfig(in)
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "pw", in)
	}
}
