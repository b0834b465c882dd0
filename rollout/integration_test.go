package rollout_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// rig is the embedded model on the pure-Go backend behind a local engine.
type rig struct {
	base    *model.Model
	backend model.Backend
	engine  *rollout.LocalEngine
	chat    rollout.Chat
}

func newRig(t *testing.T, slots int) rig {
	t.Helper()
	m, err := tiny.Open()
	require.NoError(t, err)
	b, err := gobackend.New(m, gobackend.Options{})
	require.NoError(t, err)
	d, err := b.NewDecoder(model.DecoderConfig{Slots: slots, MaxLen: 512})
	require.NoError(t, err)
	e, err := rollout.NewEngine(d, rollout.EngineConfig{Slots: slots, MaxLen: 512, Quantum: 4})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close())
		require.NoError(t, b.Close())
	})
	chat, err := rollout.NewModelChat(m)
	require.NoError(t, err)
	return rig{m, b, e, chat}
}

var tinyLoRA = model.LoRAConfig{Rank: 4, Alpha: 8, Targets: []string{"q_proj", "v_proj", "down_proj"}}

// adapter makes one that moves the logits visibly.
func (r rig) adapter(t *testing.T, seed uint64) *model.Adapter {
	t.Helper()
	a, err := model.NewAdapter(r.base.Config, tinyLoRA, r.base.Digest, seed)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 9))
	for i := range a.Params {
		a.Params[i] += float32(0.05 * rng.NormFloat64())
	}
	return a
}

// scores are the learner's logprobs of the tokens after the prompt under an
// adapter (nil = base), at temperature 1.
func (r rig) scores(t *testing.T, prompt, ids []int32, a *model.Adapter) []float32 {
	t.Helper()
	tr, err := r.backend.NewTrainer(model.TrainerConfig{LoRA: tinyLoRA})
	require.NoError(t, err)
	defer tr.Close()
	var params []float32
	if a != nil {
		params = a.Params
	}
	train := make([]bool, len(ids))
	for i := range train {
		train[i] = true
	}
	s, err := tr.Score(context.Background(), []model.PrefixGroup{{Prompt: prompt, Members: []model.Sequence{{Tokens: ids, Train: train}}}}, 1, params)
	require.NoError(t, err)
	return s.LogProbs
}

func gap(a, b []float32) float64 {
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(float64(a[i]-b[i])))
	}
	return worst
}

// Engine logprob against learner logprob for the same tokens and adapter, at
// most 1e-4; and far from it when the adapter is ignored. Cases rows "logprobs"
// (looked up by the sampled id), "kv-cache" and "weight-sync".
func TestEngineAgreesWithTheLearner(t *testing.T) {
	r := newRig(t, 6)
	first, second := r.adapter(t, 1), r.adapter(t, 2)
	src := task.NewStore(0)
	require.NoError(t, r.engine.SetPolicy(1, first))
	var wg sync.WaitGroup
	gens := make([]rollout.Generation, 8)
	prompts := make([][]int32, 8)
	for i := range gens {
		tk, err := src.Train(uint64(i / 4)) // two groups of four
		require.NoError(t, err)
		text, err := r.chat.Render(rollout.Opening(tk), tk.Tools, true)
		require.NoError(t, err)
		prompts[i] = r.chat.Encode(text)
		wg.Go(func() {
			g, err := r.engine.Generate(context.Background(), rollout.GenerateRequest{
				Session: fmt.Sprint(i), Prompt: prompts[i], MaxNew: 120, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)},
			})
			require.NoError(t, err)
			gens[i] = g
		})
	}
	require.Eventually(t, func() bool { return r.engine.Stats().Generated > 60 }, 20*time.Second, time.Millisecond)
	require.NoError(t, r.engine.SetPolicy(2, second)) // in flight
	wg.Wait()
	versions := map[uint64]bool{}
	worst, ignored := 0.0, 0.0
	for i, g := range gens {
		base := r.scores(t, prompts[i], g.IDs, nil)
		byVersion := map[uint64][]float32{1: r.scores(t, prompts[i], g.IDs, first), 2: r.scores(t, prompts[i], g.IDs, second)}
		at := 0
		for _, run := range g.Versions {
			versions[run.Version] = true
			worst = max(worst, gap(g.Logprobs[at:run.End], byVersion[run.Version][at:run.End]))
			ignored = max(ignored, gap(g.Logprobs[at:run.End], base[at:run.End]))
			at = run.End
		}
	}
	require.Len(t, versions, 2, "the swap came too early or too late to test anything")
	require.LessOrEqual(t, worst, 1e-4)
	require.Greater(t, ignored, 1e-2, "the adapters must matter for this test to mean something")
	t.Logf("largest gap to the learner %.2g, to the base %.2g", worst, ignored)
}

// The embedded model plays the store task through the whole loop: valid logs, no
// forks, every token as sampled, and a demonstration tokenised alike.
func TestEmbeddedModelPlaysTheStore(t *testing.T) {
	r := newRig(t, 8)
	cfg := rollout.DefaultLoopConfig()
	cfg.MaxCompletionLength = 200
	loop, err := rollout.NewLoop(r.engine, r.chat, cfg, nil)
	require.NoError(t, err)
	src := task.NewStore(0)
	var wg sync.WaitGroup
	logs := make([]*eventlog.Log, 16)
	for i := range logs {
		wg.Go(func() {
			tk, err := src.Train(uint64(i / 4))
			require.NoError(t, err)
			logs[i], err = loop.Run(context.Background(), tk, rollout.Request{
				Meta: eventlog.Meta{Run: "r", Group: fmt.Sprint(i / 4), Member: uint32(i % 4), GroupSize: 4, Table: "train"},
				Seed: uint64(i),
			})
			require.NoError(t, err)
		})
	}
	wg.Wait()
	statuses := map[string]int{}
	reward := 0.0
	for _, l := range logs {
		statuses[l.Meta.Status.String()]++
		v, ok := l.EpisodeReward()
		require.True(t, ok, "%v %s", l.Meta.Status, l.Meta.Cause)
		reward += v / float64(len(logs))
		require.Len(t, l.Branches, 1, "the embedded model's template only appends")
		data, err := eventlog.Encode(l)
		require.NoError(t, err)
		again, err := eventlog.Decode(data)
		require.NoError(t, err)
		require.Equal(t, l.Digest(), again.Digest())
	}
	st := r.engine.Stats()
	t.Logf("%v, mean reward %.2f, %+v", statuses, reward, st)
	require.Greater(t, st.Reused, st.Prefilled, "groups share their prompts")

	m, err := src.DemoConversation(3, 0, rand.New(rand.NewPCG(1, 1)))
	require.NoError(t, err)
	tk, err := src.Train(3)
	require.NoError(t, err)
	ids, train, err := rollout.EncodeDemo(r.chat, tk.Tools, m)
	require.NoError(t, err)
	require.Len(t, train, len(ids))
	require.Less(t, len(ids), 250, "a demonstration fits the tiny model")
	whole, err := r.chat.Render(m, tk.Tools, false)
	require.NoError(t, err)
	require.Contains(t, whole, r.chat.Decode(ids), "it reads as the template writes it")
}
