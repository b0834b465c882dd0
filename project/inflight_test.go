package project

import (
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
)

// A run whose rollouts go on over the old cache while policies change trains
// and its steps recompute; an engine with the other mode is not shared with it.
func TestInFlightUpdates(t *testing.T) {
	c := DefaultConfig()
	c.Run, c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations = "m", 4, 2, 2
	c.Training.MaxStaleness, c.Training.MaxCompletionLength, c.Eval.Tasks = 2, 96, 0
	c.Rollout.InFlight = "sometimes"
	require.ErrorContains(t, c.Validate(), "rollout.in_flight")
	c.Rollout.InFlight = InFlightKeep
	dir := t.TempDir()
	_, err := RunLocal(t.Context(), c, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.NoError(t, err)
	st, err := OpenStore(t.Context(), StoreOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer st.Close()
	var rep *learner.VerifyReport
	rep, err = VerifyStep(t.Context(), st, "m", 4, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.True(t, rep.OK)

	bases := newBases()
	p, err := openPartsOn(bases, c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer p.Close()
	keep, leaveKeep, err := p.base.seat(c, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, leaveKeep()) }()
	other := c
	other.Run, other.Rollout.InFlight = "n", InFlightRecompute
	recompute, leave, err := p.base.seat(other, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, leave()) }()
	require.NotSame(t, keep.seat, recompute.seat)
	require.Len(t, p.base.engines, 2)
}
