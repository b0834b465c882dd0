package remote

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

func TestGenerate(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, nil)
	g, err := e.Generate(t.Context(), ask(1, 2, 3))
	require.NoError(t, err)
	require.Len(t, g.IDs, 4)
	require.EqualValues(t, fakeStop, g.IDs[3], "the stop token is emitted")
	require.Len(t, g.Logprobs, 4)
	require.Equal(t, rollout.FinishStop, g.Finish)
	require.Equal(t, []rollout.VersionRun{{End: 4, Version: 0}}, g.Versions)

	req := ask(1, 2, 3)
	req.MaxNew = 2
	g, err = e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, rollout.FinishLength, g.Finish)

	// What is not said would come from the model's generation_config.json.
	b := f.bodies[len(f.bodies)-1]
	for key, want := range map[string]any{
		"model": "base", "temperature": 1.0, "top_p": 1.0, "top_k": -1.0, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0,
		"presence_penalty": 0.0, "ignore_eos": true, "return_token_ids": true, "logprobs": 1.0, "max_tokens": 2.0,
		"prompt": []any{1.0, 2.0, 3.0}, "stop_token_ids": []any{float64(fakeStop)},
	} {
		require.Equal(t, want, b[key], key)
	}
	require.GreaterOrEqual(t, b["seed"], 0.0)
	require.NotContains(t, b, "session")
	require.EqualValues(t, 6, e.Stats().Generated)
}

func TestSeedsOfTurnsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for prompt := range 100 {
		seen[turnSeed(5, prompt)] = true
	}
	require.Len(t, seen, 100)
}

func TestAdaptersFollowThePolicy(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, nil)
	base, err := e.Generate(t.Context(), ask(1))
	require.NoError(t, err)
	a1, a2, a3 := testAdapter(t, m, 0.1), testAdapter(t, m, 0.2), testAdapter(t, m, 0.3)
	require.NoError(t, e.SetPolicy(1, a1))
	one, err := e.Generate(t.Context(), ask(1))
	require.NoError(t, err)
	require.NotEqual(t, base.IDs, one.IDs)
	require.EqualValues(t, 1, one.Versions[0].Version)
	require.Len(t, f.names(), 1)
	require.Regexp(t, `^skein-demo-v1-[0-9a-f]{16}$`, f.names()[0])

	// The one before stays, for evaluations; older ones go.
	require.NoError(t, e.SetPolicy(2, a2))
	require.NoError(t, e.SetPolicy(1, a1))
	require.Equal(t, 3, f.count("/v1/load_lora_adapter")+1, "going back loads nothing")
	require.NoError(t, e.SetPolicy(2, a2))
	require.NoError(t, e.SetPolicy(3, a3))
	require.Len(t, f.names(), 2)

	old, fresh := uint64(2), uint64(3)
	req := ask(1)
	req.Version = &old
	_, err = e.Generate(t.Context(), req)
	require.ErrorIs(t, err, rollout.ErrVersion)
	req.Version, req.MinVersion = nil, fresh+1
	_, err = e.Generate(t.Context(), req)
	require.ErrorIs(t, err, rollout.ErrVersion)

	require.NoError(t, e.Close())
	require.Empty(t, f.names(), "a closed engine leaves nothing behind")
	_, err = e.Generate(t.Context(), ask(1))
	require.ErrorIs(t, err, rollout.ErrEngineClosed)
}

func TestRequestInFlightKeepsItsVersion(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, nil)
	require.NoError(t, e.SetPolicy(1, testAdapter(t, m, 0.1)))
	hold := make(chan struct{})
	f.set(func() { f.hold = hold })
	type result struct {
		g   rollout.Generation
		err error
	}
	done := make(chan result)
	go func() {
		g, err := e.Generate(t.Context(), ask(1))
		done <- result{g, err}
	}()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.running == 1 }, 5*time.Second, time.Millisecond)
	for v := range 3 {
		require.NoError(t, e.SetPolicy(uint64(v+2), testAdapter(t, m, float32(v+2))))
	}
	require.True(t, strings.Contains(strings.Join(f.names(), " "), "-v1-"), "in use: not unloaded")
	close(hold)
	r := <-done
	require.NoError(t, r.err)
	require.EqualValues(t, 1, r.g.Versions[0].Version)
}

func TestRestartedServerIsGivenItsAdapterAgain(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, nil)
	require.NoError(t, e.SetPolicy(4, testAdapter(t, m, 0.4)))
	want, err := e.Generate(t.Context(), ask(1))
	require.NoError(t, err)
	f.set(func() { f.adapters = map[string]string{} })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			got, err := e.Generate(t.Context(), ask(1))
			if err != nil || !equal(got, want) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 2, f.count("/v1/load_lora_adapter"), "one of the requests loads it")
}

func equal(a, b rollout.Generation) bool {
	if len(a.IDs) != len(b.IDs) {
		return false
	}
	for i := range a.IDs {
		if a.IDs[i] != b.IDs[i] || a.Logprobs[i] != b.Logprobs[i] {
			return false
		}
	}
	return a.Versions[0] == b.Versions[0]
}

func TestSharedServer(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	one, two := f.engine(t, m, nil), f.engine(t, m, nil)
	a := testAdapter(t, m, 0.4)
	require.NoError(t, one.SetPolicy(1, a))
	require.NoError(t, two.SetPolicy(1, a), "loaded already, by another worker")
	require.NoError(t, one.Close())
	_, err := two.Generate(t.Context(), ask(1))
	require.NoError(t, err)
}

func TestCapacity(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, func(c *Config) { c.Capacity = 3 })
	hold := make(chan struct{})
	f.set(func() { f.hold = hold })
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			if _, err := e.Generate(t.Context(), ask(int32(i))); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.running == 3 }, 5*time.Second, time.Millisecond)
	// One that waits for a place leaves with its context.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("drained"))
	_, err := e.Generate(ctx, ask(1))
	require.ErrorContains(t, err, "drained")
	close(hold)
	all.Wait()
	require.Equal(t, 3, f.most)
}

func TestCancelClosesTheRequest(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	e := f.engine(t, m, nil)
	f.set(func() { f.hold = make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := e.Generate(ctx, ask(1))
		done <- err
	}()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.running == 1 }, 5*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.running == 0 }, 5*time.Second, time.Millisecond, "the server learns of it")
}

func TestRequestsThatNoServerTakes(t *testing.T) {
	m := testModel(t)
	e := newFake(t, false).engine(t, m, nil)
	for want, change := range map[string]func(*rollout.GenerateRequest){
		"Prompt is empty":     func(r *rollout.GenerateRequest) { r.Prompt = nil },
		"MaxNew is 0":         func(r *rollout.GenerateRequest) { r.MaxNew = 0 },
		"exceeds the context": func(r *rollout.GenerateRequest) { r.MaxNew = 256 },
		`adapter "x"`:         func(r *rollout.GenerateRequest) { r.Adapter = "x" },
		"StopText":            func(r *rollout.GenerateRequest) { r.StopText = []string{"x"} },
		"Raw":                 func(r *rollout.GenerateRequest) { r.Raw = true },
	} {
		req := ask(1)
		change(&req)
		_, err := e.Generate(t.Context(), req)
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, e.SetPolicy(1, &model.Adapter{Full: true}), "train with LoRA")
	require.EqualValues(t, 0, e.Version())
}

// A distribution that is not the model's own needs a server that tells its
// logprobs.
func TestRawLogprobs(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	f.raw = true
	e := f.engine(t, m, nil)
	for _, ok := range []model.Sampling{{Temperature: 1}, {Temperature: 1, TopP: 1}, {}} {
		req := ask(1)
		req.Sampling = ok
		_, err := e.Generate(t.Context(), req)
		require.NoError(t, err)
	}
	for _, bad := range []model.Sampling{{Temperature: 0.7}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopK: 5}, {Temperature: 1, MinP: 0.1}} {
		req := ask(1)
		req.Sampling = bad
		_, err := e.Generate(t.Context(), req)
		require.ErrorIs(t, err, ErrRawLogprobs)
		require.ErrorContains(t, err, "--logprobs-mode processed_logprobs")
	}
	f2 := newFake(t, false)
	req := ask(1)
	req.Sampling.Temperature = 0.7
	_, err := f2.engine(t, m, nil).Generate(t.Context(), req)
	require.NoError(t, err)
}

func TestRefusedServers(t *testing.T) {
	m := testModel(t)
	for name, c := range map[string]struct {
		set  func(*fakeServer, *Config)
		want string
	}{
		"key":     {func(_ *fakeServer, c *Config) { c.Key = "other" }, "HTTP 401"},
		"model":   {func(_ *fakeServer, c *Config) { c.Model = "other" }, `model "other" is not served`},
		"context": {func(f *fakeServer, _ *Config) { f.maxLen = 100 }, "--max-model-len"},
		"no ids": {func(f *fakeServer, _ *Config) {
			f.change = func(a map[string]any) {
				delete(choice(a), "token_ids")
				choice(a)["logprobs"].(map[string]any)["tokens"] = []string{"hi"}
			}
		}, "no token ids"},
		"no logprobs":  {func(f *fakeServer, _ *Config) { f.change = func(a map[string]any) { delete(choice(a), "logprobs") } }, "no logprobs"},
		"no lora":      {func(f *fakeServer, _ *Config) { f.noLoRA = true }, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"},
		"no folder":    {func(_ *fakeServer, c *Config) { c.Adapters = "" }, "adapters=FOLDER"},
		"openai kind":  {func(_ *fakeServer, c *Config) { c.Kind = OpenAI }, "cannot follow a policy"},
		"not a server": {func(f *fakeServer, c *Config) { c.URL = "http://127.0.0.1:1"; c.Attempts = 1 }, "does not answer"},
		"html": {func(f *fakeServer, _ *Config) {
			f.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
				_, _ = w.Write([]byte("<html>"))
				return true
			}
		}, "no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			cfg := f.config(t, VLLM)
			c.set(f, &cfg)
			s, err := Open(t.Context(), cfg, m)
			if err == nil {
				defer s.Close()
				_, err = s.ForRun(t.Context(), "demo", m, 256, true)
			}
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), cfg.Key+"x")
		})
	}
}

// Servers that spell ids only in their logprobs (return_tokens_as_token_ids) serve
// when usage shows the prompt's length.
func TestIDsFromLogprobs(t *testing.T) {
	m := testModel(t)
	f := newFake(t, false)
	f.change = func(a map[string]any) { delete(choice(a), "token_ids"); delete(choice(a), "prompt_token_ids") }
	g, err := f.engine(t, m, nil).Generate(t.Context(), ask(1, 2))
	require.NoError(t, err)
	require.Len(t, g.IDs, 4)
	f.set(func() {
		f.change = func(a map[string]any) { delete(choice(a), "prompt_token_ids"); delete(a, "usage") }
	})
	_, err = Open(t.Context(), f.config(t, VLLM), m)
	require.ErrorContains(t, err, "nothing shows that the prompt was read")
}
