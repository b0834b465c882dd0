package rollout

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

func policy(v uint64) loadedPolicy {
	return loadedPolicy{version: v, digest: fmt.Sprint("d", v), adapter: fakeAdapter(v)}
}

func TestGateSwapsInFlightForTraining(t *testing.T) {
	e := newScript()
	g := newPolicyGate(e, nil)
	ctx := t.Context()
	require.NoError(t, g.beginTrain(ctx, 0))
	require.NoError(t, g.publish(ctx, policy(1)))
	require.Equal(t, uint64(1), e.Version(), "a training call does not hold a swap up")
	g.endTrain()
}

func TestGateHoldsTrainingBackUntilItsVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newPolicyGate(newScript(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, g.beginTrain(ctx, 2), context.DeadlineExceeded)
		go func() {
			time.Sleep(time.Second)
			require.NoError(t, g.publish(t.Context(), policy(2)))
		}()
		require.NoError(t, g.beginTrain(t.Context(), 2))
		g.endTrain()
	})
}

func TestGatePinsAnEvaluation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newScript()
		g := newPolicyGate(e, nil)
		ctx := t.Context()
		require.NoError(t, g.publish(ctx, policy(5)))

		// An evaluation of another version waits for training calls in flight,
		// and new ones wait for it.
		require.NoError(t, g.beginTrain(ctx, 0))
		evalBegan, trainBegan := make(chan bool, 1), make(chan bool, 1)
		go func() { require.NoError(t, g.beginEval(ctx, policy(3))); evalBegan <- true }()
		synctest.Wait()
		go func() { require.NoError(t, g.beginTrain(ctx, 4)); trainBegan <- true }()
		synctest.Wait()
		require.Empty(t, evalBegan)
		require.Empty(t, trainBegan)
		g.endTrain()
		synctest.Wait()
		require.Len(t, evalBegan, 1)
		require.Empty(t, trainBegan, "version 3 is too old for it")
		require.Equal(t, uint64(3), e.Version())

		// Another evaluation of the same version joins, a newer policy waits, and
		// a training call that accepts version 3 goes on beside it.
		require.NoError(t, g.beginEval(ctx, policy(3)))
		require.NoError(t, g.publish(ctx, policy(6)))
		require.Equal(t, uint64(3), e.Version())
		require.NoError(t, g.beginTrain(ctx, 3))
		g.endTrain()
		g.endEval()
		synctest.Wait()
		require.Empty(t, trainBegan)
		g.endEval()
		synctest.Wait()
		require.Len(t, trainBegan, 1)
		require.Equal(t, uint64(6), e.Version(), "the newest policy follows")
		g.endTrain()

		// One that gives up leaves no trace.
		require.NoError(t, g.beginTrain(ctx, 0))
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, g.beginEval(short, policy(3)), context.DeadlineExceeded)
		require.NoError(t, g.beginTrain(ctx, 0))
	})
}

// Cases row "weight-sync": an adapter without effect is not served, and tokens
// sampled under it in the meantime are disowned.
func TestGateRollsBackAPolicyThatFailsItsProbe(t *testing.T) {
	e := newScript()
	fails := true
	g := newPolicyGate(e, func(context.Context, loadedPolicy) error {
		if fails {
			return fmt.Errorf("%w: same logprobs", errProbe)
		}
		return nil
	})
	ctx := t.Context()
	err := g.publish(ctx, policy(2))
	require.ErrorIs(t, err, errProbe)
	require.ErrorContains(t, err, "policy version 2")
	require.ErrorContains(t, err, "still serving version 0")
	require.Zero(t, e.Version())

	b := eventlog.NewBuilder(eventlog.Meta{})
	_, err = b.AppendTokens(0, []int32{1}, nil, eventlog.Prompt, 0)
	require.NoError(t, err)
	_, err = b.AppendTokens(0, []int32{2}, []float32{-1}, eventlog.Policy, 2)
	require.NoError(t, err)
	log, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)
	require.ErrorIs(t, g.vouch(ctx, log), errProbe)

	fails = false
	require.NoError(t, g.publish(ctx, policy(2)))
	require.NoError(t, g.vouch(ctx, log))
	e.onPolicy = func(uint64) error { return errors.New("out of memory") }
	require.ErrorContains(t, g.publish(ctx, policy(3)), "out of memory")
	require.Equal(t, uint64(2), e.Version())
}
