package project

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// statusOnly is a store that knows a run's status and nothing else.
type statusOnly struct {
	replay.Store
	s replay.RunStatus
}

func (s statusOnly) Status(context.Context, string) (replay.RunStatus, error) { return s.s, nil }

// A step whose checkpoints were not kept is refused with the steps that can be
// verified; the oldest kept one gets further.
func TestVerifyNamesTheKeptSteps(t *testing.T) {
	c := DefaultConfig()
	c.Model = "/nowhere"
	text, err := c.YAML()
	require.NoError(t, err)
	st := statusOnly{s: replay.RunStatus{Spec: replay.RunSpec{Run: "r", Config: text, KeepCheckpoints: 3}, LastStep: &replay.StepRecord{Step: 10}}}
	log := slog.New(slog.DiscardHandler)
	_, err = VerifyStep(t.Context(), st, "r", 7, log)
	require.ErrorIs(t, err, replay.ErrNotFound)
	require.ErrorContains(t, err, "limits.save_total_limit), 8 to 10")
	_, err = VerifyStep(t.Context(), st, "r", 8, log)
	require.ErrorContains(t, err, "/nowhere")
}
