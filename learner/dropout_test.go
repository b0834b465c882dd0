package learner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// stirred moves a learner's start away from B = 0, where dropout changes nothing
// but B's gradient.
func stirred(l *Learner) *Learner {
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range l.params {
		l.params[i] += .2 * float32(rng.NormFloat64())
	}
	l.start, l.moving = clonef(l.params), clonef(l.params)
	return l
}

// TestDropoutInTheStep: old log-probabilities are of the whole adapter, so that
// they agree with the engine's, and the first update's ratio is not 1; every
// optimizer step has masks of its own, which depend on the seed.
func TestDropoutInTheStep(t *testing.T) {
	c := small(4)
	c.LearningRate, c.Beta, c.RolloutImportanceSampling, c.Epsilon = .01, .05, true, .001
	train := func(rate float64, seed uint64) (*Learner, StepResult) {
		c := c
		c.LoRADropout, c.Seed = rate, seed
		l, b := realLearner(t, c)
		stirred(l)
		groups := decode(t, b, l.Adapter(), 0, 1, 3, "a", "b")
		return l, step(t, l, groups...)
	}
	plain, whole := train(0, 1)
	require.Zero(t, whole.Metrics["clip_ratio/region_mean"])
	require.Zero(t, whole.Metrics["kl"])
	dropped, res := train(.3, 1)
	require.LessOrEqual(t, res.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "the engine is compared with the whole adapter")
	require.Greater(t, res.Metrics["clip_ratio/region_mean"], 0.1, "the ratio is to the whole adapter")
	require.NotZero(t, res.Metrics["kl"])
	require.NotEqual(t, plain.Params(), dropped.Params())
	again, _ := train(.3, 1)
	require.Equal(t, dropped.Params(), again.Params())
	other, _ := train(.3, 2)
	require.NotEqual(t, dropped.Params(), other.Params())

	l, b := realLearner(t, c)
	m := pack(rowsOf(built(t, l, decode(t, b, l.Adapter(), 0, 1, 3, "a")...)), all, 1<<20)[0]
	c.LoRADropout = .5
	require.Equal(t, m.groups, m.under(model.Dropout{}))
	first, next := c.dropout(model.DropoutPolicy, 0), c.dropout(model.DropoutPolicy, 1)
	require.NotEqual(t, first.Key, next.Key)
	require.NotEqual(t, first.Key, c.dropout(model.DropoutCritic, 0).Key)
	require.Equal(t, first, m.under(first)[0].Dropout)
	require.Zero(t, m.groups[0].Dropout, "what is scored without stays")
}

func built(t *testing.T, l *Learner, groups ...Group) *Batch {
	b, err := Build(l.cfg, l.version, groups)
	require.NoError(t, err)
	return b
}

// TestDropoutMicroBatches: no cut of a step into micro-batches changes its result
// beyond rounding, no helper changes a bit.
func TestDropoutMicroBatches(t *testing.T) {
	c := small(4)
	c.LearningRate, c.AdamEpsilon, c.Beta, c.NumIterations, c.NumMiniBatches, c.LoRADropout = .01, 1e-3, .1, 2, 2, .3
	c.TopEntropyQuantile = .8
	_, b := realLearner(t, c)
	run := func(budget, helpers int) ([]float32, StepResult) {
		c.TokenBudget = budget
		l, _ := realLearner(t, c)
		stirred(l)
		groups := decode(t, b, l.Adapter(), 0, 1, 3, "a", "b", "c")
		for range helpers {
			other, _ := realLearner(t, c)
			enlisted(t, l, other.Lend("table"), 1<<40)
		}
		res := step(t, l, groups...)
		return l.Params(), res
	}
	want, _ := run(1<<20, 0)
	alone, res := run(12, 0)
	require.Greater(t, res.Metrics["micro_batches"], 2.)
	for i := range want {
		require.InDelta(t, want[i], alone[i], 2e-5)
	}
	helped, _ := run(12, 2)
	require.Equal(t, alone, helped)
}

// TestDropoutResumesAndVerifies: a resumed training has the same masks, and a
// step computed again the same bits; with another rate it has not.
func TestDropoutResumesAndVerifies(t *testing.T) {
	c := small(4)
	c.LearningRate, c.NumIterations, c.LoRADropout = .02, 2, .25
	l, b := realLearner(t, c)
	st := &stepStore{blobs: map[string][]byte{}, logs: map[string]replay.Record{}}
	for i := range 3 {
		groups := decode(t, b, l.Adapter(), l.Version(), 1, uint64(i), fmt.Sprint("a", i), fmt.Sprint("b", i))
		before := l.Checkpoint()
		res := step(t, l, groups...)
		st.commit(t, before, l, res, groups)
		resumed, _ := realLearner(t, c)
		require.NoError(t, resumed.Restore(before))
		require.Equal(t, l.Params(), func() []float32 { step(t, resumed, groups...); return resumed.Params() }())
	}
	newTrainer := func(tc model.TrainerConfig) (model.Trainer, error) { return b.NewTrainer(tc) }
	for n := range st.steps {
		rep, err := VerifyStep(t.Context(), st, run, uint64(n+1), newTrainer)
		require.NoError(t, err)
		require.True(t, rep.OK, "step %d: %+v", n+1, rep)
	}
	ck, err := DecodeCheckpoint(st.blobs[st.steps[1].Checkpoint])
	require.NoError(t, err)
	ck.Config.LoRADropout = .5
	st.steps[1].Checkpoint = st.put(t, ck)
	rep, err := VerifyStep(t.Context(), st, run, 2, newTrainer)
	require.NoError(t, err)
	require.False(t, rep.OK)
}

// TestDropoutOffline: on rows too, losses of whole batches are taken under the
// masks of their gradient, whatever the micro-batches; evaluations and references
// are of the whole adapter.
func TestDropoutOffline(t *testing.T) {
	for algorithm, c := range offlineConfigs() {
		t.Run(algorithm, func(t *testing.T) {
			c.LoRADropout, c.MaxSteps, c.LearningRate, c.AdamEpsilon = .3, 3, .01, 1e-3
			set := offlineRows(algorithm)
			train := func(budget int, rate float64) ([]float32, map[string]float64) {
				c := c
				c.TokenBudget, c.LoRADropout = budget, rate
				l := stirred(offlineLearner(t, c))
				var eval map[string]float64
				require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{Eval: set, OnEval: func(e OfflineEval) error {
					if e.Step == 0 {
						eval = e.Metrics
					}
					return nil
				}}))
				return l.Params(), eval
			}
			want, eval := train(1<<20, .3)
			parts, _ := train(6, .3)
			for i := range want {
				require.InDelta(t, want[i], parts[i], 2e-5)
			}
			plain, same := train(1<<20, 0)
			require.NotEqual(t, plain, want)
			require.Equal(t, same["eval_loss"], eval["eval_loss"])
		})
	}
}

func TestDropoutRateIsChecked(t *testing.T) {
	for _, rate := range []float64{-.1, 1, 2} {
		c := small(4)
		c.LoRADropout = rate
		require.ErrorContains(t, c.Validate(), "lora_dropout: ")
	}
}

// stepStore is a VerifyStore of steps made here.
type stepStore struct {
	blobs map[string][]byte
	steps []replay.StepRecord
	logs  map[string]replay.Record
}

func (s *stepStore) put(t *testing.T, c *Checkpoint) string {
	data, err := c.Encode()
	require.NoError(t, err)
	d := model.BlobDigest(data)
	s.blobs[d] = data
	return d
}

func (s *stepStore) commit(t *testing.T, before *Checkpoint, l *Learner, res StepResult, groups []Group) {
	rec := replay.StepRecord{Run: run, Step: res.Step, Version: res.Version, LogIDs: res.Trained, Adapter: l.Adapter().Digest(),
		Metrics: res.Metrics, PrevCheckpoint: s.put(t, before), Checkpoint: s.put(t, l.Checkpoint())}
	s.steps = append(s.steps, rec)
	for _, g := range groups {
		for _, log := range g.Logs {
			data, err := eventlog.Encode(log)
			require.NoError(t, err)
			s.logs[log.ID] = replay.Record{Item: replay.Item{LogID: log.ID, Group: g.ID, Member: log.Meta.Member, GroupSize: 4, Digest: log.Digest()}, Bytes: data}
		}
	}
}

func (s *stepStore) Step(_ context.Context, _ string, n uint64) (replay.StepRecord, error) {
	return s.steps[n-1], nil
}

func (s *stepStore) GetBlob(_ context.Context, d string) ([]byte, error) { return s.blobs[d], nil }

func (s *stepStore) Fetch(_ context.Context, ids []string) (out []replay.Record, err error) {
	for _, id := range ids {
		out = append(out, s.logs[id])
	}
	return out, nil
}
