package actors

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPermanentFailureIsNotRestarted(t *testing.T) {
	require.NoError(t, Permanent(nil))
	s := newSystem(t)
	boom := errors.New("boom")
	var runs atomic.Int32
	h, err := s.Spawn(Role{Name: "learner", Run: func(context.Context) error {
		runs.Add(1)
		return fmt.Errorf("step 3: %w", Permanent(boom))
	}}, quick)
	require.NoError(t, err)
	await(t, h)
	require.ErrorIs(t, h.Err(), boom)
	require.EqualError(t, h.Err(), "step 3: boom")
	require.EqualValues(t, 1, runs.Load())
}
