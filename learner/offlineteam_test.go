package learner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// room is a team in memory: its helpers by id, each with how many messages its
// channel carries before it breaks.
type room struct {
	t       testing.TB
	lenders map[string]*Lender
	limits  map[string]int64
	wg      sync.WaitGroup
}

func (r *room) Lead(context.Context) (bool, error) { panic("a training on rows has its leader") }

func (r *room) Helpers(context.Context) (ids []string, err error) {
	for id := range r.lenders {
		ids = append(ids, id)
	}
	return ids, nil
}

func (r *room) Dial(ctx context.Context, id string) (Channel, error) {
	mine, theirs := newPipe(r.limits[id])
	r.wg.Go(func() { _ = r.lenders[id].Serve(ctx, theirs) })
	return mine, nil
}

// A training on rows ends at the same bits whoever computes its micro-batches,
// and whenever a helper breaks; for every algorithm, and for a loss that sees
// the whole step first.
func TestOfflineHelpersChangeNoBit(t *testing.T) {
	configs := offlineConfigs()
	smooth := configs[SFT]
	smooth.LabelSmoothing = .1
	configs["label smoothing"] = smooth
	aligned := configs[DPO]
	aligned.Weighting = "wpo_aligned"
	configs["wpo aligned"] = aligned
	helped := 0.0
	for name, c := range configs {
		c.NumTrainEpochs, c.TokenBudget = 1, 1
		set := offlineRows(c.Algorithm)
		metrics := func(to *[]map[string]float64) func(OfflineStep) error {
			return func(s OfflineStep) error { *to = append(*to, s.Metrics); return nil }
		}
		alone := offlineLearner(t, c)
		var want []map[string]float64
		require.NoError(t, RunOffline(ctx, alone, set, OfflineOptions{Eval: set, OnStep: metrics(&want)}))
		for helpers := range 3 {
			rng := rand.New(rand.NewPCG(uint64(helpers), 1))
			r := &room{t: t, lenders: map[string]*Lender{}, limits: map[string]int64{}}
			for i := range helpers + 1 {
				id := fmt.Sprint("h", i)
				r.lenders[id] = offlineLearner(t, c).Lend("go")
				r.limits[id] = 2 + rng.Int64N(60) // then it breaks
			}
			l := offlineLearner(t, c)
			var got []map[string]float64
			require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{Eval: set, OnStep: metrics(&got), Team: r, Hello: l.Hello("go")}))
			r.wg.Wait()
			require.Equal(t, alone.Params(), l.Params(), name)
			require.Equal(t, alone.bco, l.bco)
			for i, m := range want {
				sameResult(t, StepResult{Metrics: m}, StepResult{Metrics: got[i]})
				helped += got[i]["time/helped_micro_batches"]
			}
			require.Empty(t, l.helpers, "they are dismissed at the end")
		}
	}
	require.Positive(t, helped, "nobody ever helped")
}

// A learner that trains other numbers, or gives none of those that are needed,
// does not help.
func TestOfflineHelpersMustAgree(t *testing.T) {
	c := offlineConfigs()[SFT]
	c.MaxSteps = 1
	plain := offlineLearner(t, c).Lend("go")
	c.LabelSmoothing = .1
	l := offlineLearner(t, c)
	var warned []error
	r := &room{t: t, lenders: map[string]*Lender{"plain": plain}, limits: map[string]int64{"plain": 100}}
	require.NoError(t, RunOffline(ctx, l, offlineRows(SFT), OfflineOptions{Team: r, Hello: l.Hello("go"), OnWarning: func(err error) { warned = append(warned, err) }}))
	r.wg.Wait()
	require.Len(t, warned, 1, "told once")
	require.ErrorContains(t, warned[0], "plain does not help")
	require.NotEqual(t, layoutDigest(l.tr.Layout(), model.TrainerConfig{}), layoutDigest(l.tr.Layout(), model.TrainerConfig{LogSumSq: true}))
}
