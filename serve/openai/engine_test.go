package openai

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/remote"
)

// A worker whose engine is this server samples, to the bit, what one with the
// model in its own process does, under the base and under an adapter, and records
// the same logprobs.
func TestEngineOverTheWire(t *testing.T) {
	root := t.TempDir()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	relative, err := filepath.Rel(here, root) // the worker names whole paths
	require.NoError(t, err)
	s := serveTiny(t, relative)
	cfg := remote.DefaultConfig()
	cfg.Kind, cfg.URL, cfg.Adapters = remote.Skein, s.URL, root
	server, err := remote.Open(t.Context(), cfg, s.m)
	require.NoError(t, err)
	defer server.Close()
	e, err := server.ForRun(t.Context(), "demo", s.m, 512, true)
	require.NoError(t, err)

	a, err := model.NewAdapter(s.m.Config, model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}, s.m.Digest, 1)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range a.Params {
		a.Params[i] = float32(r.NormFloat64()) * 0.05
	}
	prompt := s.m.Tokenizer.Encode("What is 2 plus 3?", true)
	samplings := []model.Sampling{{}, {Temperature: 1, Seed: math.MaxUint64}, {Temperature: 0.7, TopP: 0.9, Seed: 4}, {Temperature: 1.2, TopK: 20, MinP: 0.01, Seed: 5}}
	for version, adapter := range []*model.Adapter{nil, a} {
		require.NoError(t, e.SetPolicy(uint64(version), adapter))
		require.NoError(t, s.engine.SetPolicy(uint64(version), adapter))
		for _, p := range samplings {
			req := rollout.GenerateRequest{Session: "a", Prompt: prompt, MaxNew: 24, Stop: []int32{s.m.Config.EOSTokenID}, Sampling: p}
			want, err := s.engine.Generate(t.Context(), req)
			require.NoError(t, err)
			got, err := e.Generate(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, want.IDs, got.IDs)
			require.Equal(t, want.Logprobs, got.Logprobs)
			require.Equal(t, want.Finish, got.Finish)
			require.Equal(t, want.Versions, got.Versions)
		}
	}

	// A server that lost the adapter, as by a restart, is given it again.
	for _, name := range s.h.adapterNames() {
		status, _ := s.post(t, "/v1/unload_lora_adapter", map[string]any{"lora_name": name})
		require.Equal(t, 200, status)
	}
	_, err = e.Generate(t.Context(), rollout.GenerateRequest{Prompt: prompt, MaxNew: 2})
	require.NoError(t, err)
	require.Len(t, s.h.adapterNames(), 1)
	require.NoError(t, e.Close())
	require.Empty(t, s.h.adapterNames())

	other := *s.m
	other.Digest = "blake3:other"
	_, err = remote.Open(t.Context(), cfg, &other)
	require.ErrorContains(t, err, "serve the run's model")
}
