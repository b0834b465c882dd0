package learner

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// headCounter scores a sequence by its last token and counts what it was given.
type headCounter struct {
	model.Trainer
	mu      sync.Mutex
	calls   int
	prompts int // computed, of the last call
	gate    chan struct{}
	broken  int32 // a token that no call with it survives
}

func (h *headCounter) Score(_ context.Context, groups []model.PrefixGroup, _ float64, _ []float32) (s model.Scores, err error) {
	<-h.gate
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	h.prompts = len(groups)
	for _, g := range groups {
		for _, m := range g.Members {
			for t, marked := range m.Value {
				switch {
				case marked && m.Tokens[t] == h.broken:
					return s, errors.New("broken row")
				case marked && m.Tokens[t] == h.broken+1:
					panic("lost")
				case marked:
					s.Values = append(s.Values, float32(m.Tokens[t]))
				}
			}
		}
	}
	return s, nil
}

// Calls that wait are computed in one pass with their prompt once; one that breaks
// fails alone, and one that is cancelled leaves the others.
func TestRewardModelBatchesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &headCounter{gate: make(chan struct{}), broken: 66}
		r := &RewardModel{tr: h, budget: 1000, turn: make(chan struct{}, 1)}
		var wg sync.WaitGroup
		score := func(ctx context.Context, want float64, wantErr string, tokens ...int32) {
			wg.Go(func() {
				got, err := r.Score(ctx, []RewardRow{{[]int32{1, 2}, tokens}})
				if wantErr != "" {
					require.ErrorContains(t, err, wantErr)
					return
				}
				require.NoError(t, err)
				require.Equal(t, []float64{want}, got)
			})
		}
		score(t.Context(), 5, "", 5)
		synctest.Wait() // the first one computes
		for n := range int32(6) {
			score(t.Context(), 10+float64(n), "", 3, 10+n)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		score(gone, 0, "given up", 5)
		synctest.Wait()
		cancel(errors.New("given up"))
		synctest.Wait()
		close(h.gate)
		wg.Wait()
		require.Equal(t, 2, h.calls, "six calls in one pass")
		require.Equal(t, 1, h.prompts, "their prompt once")

		for token, want := range map[int32]string{66: "broken row", 67: "panic: lost"} {
			h.gate = make(chan struct{})
			score(t.Context(), 5, "", 5)
			synctest.Wait()
			score(t.Context(), 0, want, token)
			score(t.Context(), 6, "", 5, 6)
			synctest.Wait()
			close(h.gate)
			wg.Wait()
		}
	})
}
