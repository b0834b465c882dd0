package learner

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
)

// offlineConfigs has one configuration per algorithm, quick to learn from.
func offlineConfigs() map[string]Config {
	out := map[string]Config{}
	for _, a := range OfflineAlgorithms() {
		c := DefaultConfigOf(a)
		c.LearningRate, c.LRSchedulerType, c.BatchTokens, c.BatchSize, c.NumTrainEpochs, c.TokenBudget = .02, "constant", 1000, 4, 6, 20
		out[a] = c
	}
	return out
}

// offlineRows: after prompt [1, p] the answer 9 3 is right and 9 4 is wrong.
func offlineRows(algorithm string) *data.Set {
	var rows []data.Example
	for p := range int32(5) {
		prompt := []int32{1, 2 + p}
		good, bad := data.Completion{Tokens: []int32{9, 3}}, data.Completion{Tokens: []int32{9, 4, 4}}
		switch algorithm {
		case DPO, Reward:
			rows = append(rows, data.Example{Prompt: prompt, Chosen: good, Rejected: bad, Weight: 1 + float64(p%2)})
		case KTO, BCO:
			rows = append(rows, data.Example{Prompt: prompt, Chosen: good, Label: true}, data.Example{Prompt: prompt, Chosen: bad})
		default:
			rows = append(rows, data.Example{Prompt: prompt, Chosen: good})
		}
	}
	return data.NewSet("rows of "+algorithm, rows, data.Order{Shuffle: true, LengthWindow: 4})
}

func offlineLearner(t testing.TB, c Config) *Learner {
	t.Helper()
	m, b := realBackend(t)
	lc := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj", "down_proj"}}
	tr, err := b.NewTrainer(c.Trainer(lc, false))
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	a, err := model.NewAdapter(m.Config, lc, m.Digest, 7)
	require.NoError(t, err)
	start := a.Params
	if c.Algorithm == Reward {
		start = append(start, make([]float32, m.Config.HiddenSize)...)
	}
	id := identity()
	id.LoRA, id.Dataset = lc, DatasetOf(offlineRows(c.Algorithm))
	l, err := New(c, id, tr, start)
	require.NoError(t, err)
	return l
}

// Every algorithm learns its rows, and says so in TRL's metrics.
func TestOfflineAlgorithmsLearn(t *testing.T) {
	accuracy := map[string]string{DPO: "rewards/accuracies", Reward: "accuracy"}
	margin := map[string]string{DPO: "rewards/margins", KTO: "rewards/margins", BCO: "rewards/margins", Reward: "margin"}
	for algorithm, c := range offlineConfigs() {
		t.Run(algorithm, func(t *testing.T) {
			set := offlineRows(algorithm)
			var first, last map[string]float64
			steps := 0
			require.NoError(t, RunOffline(ctx, offlineLearner(t, c), set, OfflineOptions{Eval: set, OnStep: func(s OfflineStep) error {
				steps++
				require.Equal(t, uint64(steps), s.Step)
				for _, name := range []string{"loss", "grad_norm", "learning_rate", "epoch", "rows", "computed_tokens"} {
					require.Contains(t, s.Metrics, name)
				}
				return nil
			}, OnEval: func(e OfflineEval) error {
				if first == nil {
					require.Zero(t, e.Step)
					first = e.Metrics
				}
				last = e.Metrics
				return nil
			}}))
			require.Equal(t, int(offlineSteps(c, set)), steps)
			require.Less(t, last["eval_loss"], .9*first["eval_loss"], "loss")
			if name := accuracy[algorithm]; name != "" {
				require.Less(t, first["eval_"+name], 1.)
				require.Equal(t, 1., last["eval_"+name], name)
			}
			if name := margin[algorithm]; name != "" {
				require.InDelta(t, 0, first["eval_"+name], 1e-6, "before the first step policy and reference are the same")
				require.Greater(t, last["eval_"+name], .05, name)
			}
		})
	}
}

// A training that is stopped inside an epoch and goes on from its checkpoint has
// the parameters, state and metrics of one that never stopped.
func TestOfflineResumesBitForBit(t *testing.T) {
	for algorithm, c := range offlineConfigs() {
		for _, precomputed := range []bool{false, true} {
			if precomputed && algorithm != DPO {
				continue
			}
			c.PrecomputeRefLogProbs, c.NumTrainEpochs = precomputed, 2
			set := offlineRows(algorithm)
			straight := offlineLearner(t, c)
			var want, got []float64
			keep := func(to *[]float64) func(OfflineStep) error {
				return func(s OfflineStep) error { *to = append(*to, s.Metrics["loss"]); return nil }
			}
			require.NoError(t, RunOffline(ctx, straight, set, OfflineOptions{OnStep: keep(&want)}))

			dir := t.TempDir()
			for stop := 1; ; stop++ { // one step a life
				l := offlineLearner(t, c)
				ck, err := LoadLatest(dir, nil)
				require.NoError(t, err)
				if ck != nil {
					require.NoError(t, l.Restore(ck))
				}
				cctx, cancel := context.WithCancel(ctx)
				err = RunOffline(cctx, l, set, OfflineOptions{Dir: dir, Keep: 2, OnStep: func(s OfflineStep) error {
					cancel()
					return keep(&got)(s)
				}})
				cancel()
				if err == nil {
					require.Equal(t, straight.Params(), l.Params(), algorithm)
					require.Equal(t, straight.bco, l.bco)
					break
				}
				require.ErrorIs(t, err, context.Canceled)
			}
			require.Equal(t, want, got, algorithm)
			kept, err := filepath.Glob(filepath.Join(dir, stepDir+"*"))
			require.NoError(t, err)
			require.Len(t, kept, 2)
		}
	}
}

// cases/training.tsv loss-agg: micro-batches cannot change the gradient, for any
// algorithm and for losses that look at the whole step.
func TestOfflinePartition(t *testing.T) {
	configs := offlineConfigs()
	aot := configs[DPO]
	aot.LossType = "aot"
	configs["aot"] = aot
	mixed := configs[DPO]
	mixed.LossType, mixed.LossWeights = "sigmoid+bco_pair+sft", []float64{.8, .2, 1}
	configs["mixture"] = mixed
	smooth := configs[SFT]
	smooth.LabelSmoothing = .2
	configs["label smoothing"] = smooth
	aligned := configs[DPO]
	aligned.Weighting = preference.WeightingWPOAligned
	configs["wpo aligned"] = aligned
	for name, c := range configs {
		set := offlineRows(c.Algorithm)
		if name == "aot" {
			rows := set.Rows()
			for i := range rows {
				rows[i].Weight = 1
			}
			set = data.NewSet("aot", rows, data.Order{Shuffle: true})
		}
		c.NumTrainEpochs = 1
		var want []float32
		for _, budget := range []int{1, 12, 1000} {
			c.TokenBudget = budget
			l := offlineLearner(t, c)
			require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{}), name)
			if want == nil {
				want = l.Params()
			}
			worst := 0.
			for i, x := range l.Params() {
				worst = max(worst, math.Abs(float64(x-want[i])))
			}
			require.Less(t, worst, 2e-4, "%s with token_budget %d", name, budget)
		}
	}
}

// Precomputed and per-step references give the same training.
func TestOfflinePrecomputedReference(t *testing.T) {
	c := offlineConfigs()[DPO]
	a := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, a, offlineRows(DPO), OfflineOptions{}))
	c.PrecomputeRefLogProbs = true
	b := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, b, offlineRows(DPO), OfflineOptions{}))
	c.Reference = ReferenceBase // the start adapter is fresh: the same model
	d := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, d, offlineRows(DPO), OfflineOptions{}))
	for i, x := range a.Params() {
		require.InDelta(t, x, b.Params()[i], 2e-3)
		require.InDelta(t, x, d.Params()[i], 2e-3)
	}
}

// cases/training.tsv dpo: the reference of a policy that starts from a trained
// adapter is that adapter, so that the first step's rewards are 0.
func TestCaseRefModelOfTrainedStart(t *testing.T) {
	c := offlineConfigs()[DPO]
	c.MaxSteps = 1
	for ref, zero := range map[string]bool{ReferenceStart: true, ReferenceBase: false} {
		c.Reference = ref
		l := offlineLearner(t, c)
		for i := range l.params {
			l.params[i] += .1
		}
		copy(l.start, l.params)
		require.NoError(t, RunOffline(ctx, l, offlineRows(DPO), OfflineOptions{OnStep: func(s OfflineStep) error {
			require.Equal(t, zero, s.Metrics["rewards/chosen"] == 0)
			return nil
		}}))
	}
}

func TestOfflineRefusesWhatItCannotTrain(t *testing.T) {
	c := offlineConfigs()[DPO]
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, c), offlineRows(SFT), OfflineOptions{}), "5 of 5 rows cannot be trained (no_pair=5)")
	s := offlineConfigs()[SFT]
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, s), offlineRows(DPO), OfflineOptions{}), "unexpected_pair=5")
	s.WarmupSteps = 100
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, s), offlineRows(SFT), OfflineOptions{}), "warmup_steps: 100")
	a := c
	a.LossType = "aot"
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, a), offlineRows(DPO), OfflineOptions{}), "weight_with_aot")
	k := offlineConfigs()[KTO]
	same := data.NewSet("one prompt", []data.Example{{Prompt: []int32{1}, Chosen: data.Completion{Tokens: []int32{2}}, Label: true}}, data.Order{})
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, k), same, OfflineOptions{}), "same prompt")
	for field, change := range map[string]func(*Config){
		"num_train_epochs": func(c *Config) { c.NumTrainEpochs = 0 }, "batch_tokens": func(c *Config) { c.BatchTokens = 0 },
		"reference": func(c *Config) { c.Reference = "x" }, "loss_type": func(c *Config) { c.LossType = "sigmoid+nope" },
		"weighting": func(c *Config) { c.Weighting = "wpo_alined" }, "beta": func(c *Config) { c.Beta = 0 },
		"batch_size": func(c *Config) { c.BatchSize = -1 }, "eval_steps": func(c *Config) { c.EvalSteps = -1 },
	} {
		bad := c
		change(&bad)
		require.ErrorContains(t, bad.Validate(), field)
	}
	bad := offlineConfigs()[BCO]
	bad.LossType, bad.LossWeights = "kto", []float64{1}
	require.ErrorContains(t, bad.Validate(), "loss_type")
	require.ErrorContains(t, bad.Validate(), "loss_weights")
}

// BCO's density ratio changes how much undesirable rows count, and needs
// embeddings of the prompts.
func TestOfflineDensityRatio(t *testing.T) {
	c := offlineConfigs()[BCO]
	c.MaxSteps = 3
	rows := offlineRows(BCO).Rows()
	plain := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, plain, data.NewSet("d", rows, data.Order{}), OfflineOptions{}))
	c.DensityRatio = true
	require.ErrorContains(t, RunOffline(ctx, offlineLearner(t, c), data.NewSet("d", rows, data.Order{}), OfflineOptions{}), "has no embedding")
	for i := range rows {
		rows[i].Embedding = []float64{float64(i), 1}
	}
	weighed := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, weighed, data.NewSet("d", rows, data.Order{}), OfflineOptions{OnStep: func(s OfflineStep) error {
		require.NotEqual(t, 1., s.Metrics["rows/weight_mean"])
		return nil
	}}))
	require.NotEqual(t, plain.Params(), weighed.Params())
	c.MinDensityRatio = 0
	require.ErrorContains(t, c.Validate(), "min_density_ratio")
}

// A trainer that answers with NaN ends the training before anything changed.
func TestOfflineNaNChangesNothing(t *testing.T) {
	l := newSFT(t, sftConfig(), &poisoned{bandit: newBandit(vocab), after: 2})
	var at []float32
	err := RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{OnStep: func(OfflineStep) error { at = l.Params(); return nil }})
	require.ErrorIs(t, err, ErrDiverged)
	require.Equal(t, uint64(2), l.StepNumber())
	require.Equal(t, at, l.Params())
}

type poisoned struct {
	*bandit
	after int
}

func (p *poisoned) Forward(ctx context.Context, g []model.PrefixGroup, temp float64) (model.Scores, error) {
	sc, err := p.bandit.Forward(ctx, g, temp)
	if p.after--; p.after < 0 && len(sc.LogProbs) > 0 {
		sc.LogProbs[0] = float32(math.NaN())
	}
	return sc, err
}

func TestPruneCheckpoints(t *testing.T) {
	dir := t.TempDir()
	l := newSFT(t, sftConfig(), newBandit(vocab))
	for i := range uint64(4) {
		l.step = i
		_, err := SaveCheckpoint(dir, l.Checkpoint())
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "step-00000001", sealFile)))
	require.NoError(t, PruneCheckpoints(dir, 2))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
	require.NoError(t, PruneCheckpoints(dir, 0))
	require.True(t, errors.Is(PruneCheckpoints(filepath.Join(dir, "none"), 1), os.ErrNotExist))
}
