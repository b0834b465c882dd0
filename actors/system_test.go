package actors

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSystem(t *testing.T) *System {
	t.Helper()
	s := NewSystem(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func await(t *testing.T, h *Handle) {
	t.Helper()
	select {
	case <-h.Done():
	case <-time.After(10 * time.Second):
		t.Fatalf("role %s did not end", h.role.Name)
	}
}

var quick = Restart{Max: 3, Backoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond}

func TestFailingRoleIsRestartedUntilItsWorkIsDone(t *testing.T) {
	s := newSystem(t)
	var runs atomic.Int32
	h, err := s.Spawn(Role{Name: "worker", Run: func(context.Context) error {
		switch runs.Add(1) {
		case 1:
			return errors.New("no leader")
		case 2:
			panic("broken invariant")
		}
		return nil
	}}, quick)
	require.NoError(t, err)
	await(t, h)
	require.NoError(t, h.Err())
	require.EqualValues(t, 3, runs.Load())
}

func TestRoleThatKeepsFailingIsGivenUpWithItsError(t *testing.T) {
	s := newSystem(t)
	boom := errors.New("boom")
	var runs atomic.Int32
	h, err := s.Spawn(Role{Name: "learner", Run: func(context.Context) error {
		runs.Add(1)
		return boom
	}}, quick)
	require.NoError(t, err)
	await(t, h)
	require.ErrorIs(t, h.Err(), boom)
	require.EqualValues(t, 1+quick.Max, runs.Load())
}

func TestSiblingOutlivesAFailedRole(t *testing.T) {
	s := newSystem(t)
	bad, err := s.Spawn(Role{Name: "bad", Run: func(context.Context) error { return errors.New("x") }}, Restart{})
	require.NoError(t, err)
	good, err := s.Spawn(Role{
		Name:   "good",
		Run:    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		Report: func() Report { return Report{"version": 7} },
	}, quick)
	require.NoError(t, err)
	await(t, bad)
	rep, err := good.Query(5 * time.Second)
	require.NoError(t, err)
	require.Equal(t, Report{"version": 7}, rep)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, good.Drain(ctx))
	require.ErrorIs(t, good.Err(), ErrDrained)
}

func TestStuckLoopDoesNotHoldTheNode(t *testing.T) {
	s := NewSystem(slog.New(slog.DiscardHandler))
	release := make(chan struct{})
	_, err := s.Spawn(Role{Name: "stuck", DrainTimeout: 10 * time.Millisecond,
		Run: func(context.Context) error { <-release; return nil }}, quick)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	close(release)
}

// Close returns after every loop did: what the loops use may be closed then.
func TestCloseWaitsForSlowLoops(t *testing.T) {
	if os.Getenv("SKEIN_SLOW") == "" {
		t.Skip("waits for longer than Proto.Actor's own 10 s; set SKEIN_SLOW=1")
	}
	s := NewSystem(slog.New(slog.DiscardHandler))
	ended := make(chan struct{})
	_, err := s.Spawn(Role{Name: "slow", DrainTimeout: time.Minute, Run: func(ctx context.Context) error {
		<-ctx.Done()
		<-time.After(11 * time.Second) // a commit under way
		close(ended)
		return nil
	}}, quick)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	select {
	case <-ended:
	default:
		t.Fatal("Close returned before the loop")
	}
}

func TestNamesAreUnique(t *testing.T) {
	s := newSystem(t)
	run := func(ctx context.Context) error { <-ctx.Done(); return nil }
	_, err := s.Spawn(Role{Name: "w", Run: run}, quick)
	require.NoError(t, err)
	_, err = s.Spawn(Role{Name: "w", Run: run}, quick)
	require.ErrorContains(t, err, `"w"`)
	_, err = s.Spawn(Role{Name: "", Run: run}, quick)
	require.Error(t, err)
}
