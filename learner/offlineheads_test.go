package learner

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
)

// firstStep trains one step and gives its loss and the scores, before it, of the
// rows' completions under the start parameters.
func firstStep(t *testing.T, c Config, set *data.Set) (lossValue float64, scores []model.Scores) {
	t.Helper()
	c.MaxSteps, c.BatchSize = 1, 100
	l := offlineLearner(t, c)
	for _, e := range set.Rows() {
		for _, x := range []data.Completion{e.Chosen, e.Rejected} {
			if len(x.Tokens) == 0 {
				continue
			}
			s, _ := scored(e.Prompt, x)
			sc, err := l.tr.Score(ctx, []model.PrefixGroup{{Prompt: e.Prompt, Members: []model.Sequence{s.Sequence}}}, 1, l.params)
			require.NoError(t, err)
			scores = append(scores, sc)
		}
	}
	require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{OnStep: func(s OfflineStep) error { lossValue = s.Metrics["loss"]; return nil }}))
	return lossValue, scores
}

// sft's label smoothing is torch's cross_entropy with label_smoothing: a part of
// the target's weight goes to all tokens alike (loss.SmoothedSFT).
func TestOfflineLabelSmoothing(t *testing.T) {
	c := offlineConfigs()[SFT]
	c.LabelSmoothing = .3
	got, scores := firstStep(t, c, offlineRows(SFT))
	want, n := 0., 0.
	for _, s := range scores {
		for i, lp := range s.LogProbs {
			want -= .7*float64(lp) + .3*float64(s.MeanLogProb[i])
			n++
		}
	}
	require.InDelta(t, want/n, got, 1e-6)
	// Hard targets are driven towards certainty, smoothed ones are not.
	entropies := map[float64]float64{}
	for _, e := range []float64{0, .3} {
		c.LabelSmoothing, c.NumTrainEpochs, c.LearningRate = e, 40, .05
		require.NoError(t, RunOffline(ctx, offlineLearner(t, c), offlineRows(SFT), OfflineOptions{OnStep: func(s OfflineStep) error {
			entropies[e] = s.Metrics["entropy"]
			return nil
		}}))
	}
	require.Greater(t, entropies[.3], entropies[0]+.3)

	c.LossType = loss.DFT
	require.ErrorContains(t, c.Validate(), "label_smoothing: 0.3, but loss_type dft")
	c.LossType, c.LabelSmoothing = loss.NLL, 1
	require.ErrorContains(t, c.Validate(), "label_smoothing: 1 is outside [0, 1)")
	for _, algorithm := range []string{KTO, BCO, Reward, GRPO} {
		c := DefaultConfigOf(algorithm)
		c.LabelSmoothing = .1
		require.ErrorContains(t, c.Validate(), "label_smoothing", algorithm)
	}
}

// WPO's aligned weights come from the policy's own distribution: a pair weighs
// exp of the mean over tokens of log π - log Σπ², of both completions.
func TestOfflineWPOAligned(t *testing.T) {
	c := offlineConfigs()[DPO]
	c.Weighting = preference.WeightingWPOAligned
	set := offlineRows(DPO)
	got, scores := firstStep(t, c, set)
	want := 0.
	for k, e := range set.Rows() {
		w := 0.
		for _, s := range scores[2*k : 2*k+2] {
			mean := 0.
			for i, lp := range s.LogProbs {
				mean += float64(lp-s.LogSumSq[i]) / float64(len(s.LogProbs))
			}
			w += mean
		}
		want += e.RowWeight() * math.Exp(w) * math.Log(2) / 5 // before the first step ratios are 0
	}
	require.InDelta(t, want, got, 1e-6)
}

// A trainer made without the heads that the loss needs is an error, not a wrong
// number.
func TestOfflineTrainerWithoutHeads(t *testing.T) {
	c := sftConfig()
	c.LabelSmoothing = .1
	l := newSFT(t, c, newBandit(vocab))
	require.ErrorContains(t, RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{}), "0 mean log-probabilities and 0 sums of squares for 4 trained tokens; make it with Config.Trainer")
	require.Zero(t, l.StepNumber())
}
