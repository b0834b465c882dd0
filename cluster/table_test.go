package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// inTable makes a record of its own group in a table.
func inTable(name, id string) replay.Record {
	r := testRecord("r", id, 1000)
	r.Item.Table, r.Item.Group, r.Item.Member, r.Item.GroupSize = name, "g-"+id, 0, 1
	return r
}

// TestTableHoldsProducersBack: a slow learner slows the producers, with the
// reason, and what was held back comes in later.
func TestTableHoldsProducersBack(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	cl := c.dial("w1", RoleWorker)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	cfg := table.Default()
	cfg.Limiter = table.Limiter{Kind: table.Queue, Size: 2}
	v, err := cl.SetTable(ctx, "r", "q", cfg, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	bad := cfg
	bad.Limiter.Size, bad.OnFull = 0, "explode"
	_, err = cl.SetTable(ctx, "r", "q", bad, 1)
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "limiter.size = 0")
	require.ErrorContains(t, err, "on_full")
	_, err = cl.SetTable(ctx, "r", "q", table.Default(), 7)
	require.ErrorIs(t, err, replay.ErrStale)

	// Of one append, two are taken and the others told to come back.
	recs := []replay.Record{inTable("q", "a"), inTable("q", "b"), inTable("q", "c"), inTable("q", "d")}
	res, err := cl.Append(ctx, recs)
	require.ErrorIs(t, err, replay.ErrBusy)
	require.NotErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "queue: 2 groups wait")
	var held []replay.Record
	for i, r := range res {
		if r.Busy != "" {
			held = append(held, recs[i])
		}
	}
	require.Len(t, held, 2)
	// Now that the table is full the leader knows before it writes any bytes.
	_, err = cl.Append(ctx, held)
	require.ErrorIs(t, err, replay.ErrBusy)
	for _, n := range c.nodes {
		if n.mustLead() == nil {
			s := sift([]replay.Record{inTable("q", "e")}, nil)
			require.NoError(t, n.holdBack(&s))
			require.Empty(t, s.good)
		}
	}

	start := time.Now()
	_, err = cl.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "q", Holder: "l", Groups: 1, TTL: time.Minute, LearnerVersion: 0})
	require.NoError(t, err)
	res, err = cl.Append(ctx, held[:1])
	require.NoError(t, err)
	require.Equal(t, []replay.AppendResult{{}}, res)
	got, err := cl.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "q", Holder: "l", Groups: 2, AtLeast: 1, TTL: time.Minute})
	require.NoError(t, err)
	require.Len(t, got.Groups, 2, "the holder's earlier lease came back first")

	// Not served in time: an error that says why.
	_, err = cl.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "q", Holder: "m", Groups: 2, TTL: time.Minute, Wait: 50 * time.Millisecond})
	require.ErrorIs(t, err, replay.ErrTimeout)
	require.ErrorContains(t, err, "queue: 1 groups wait, 2 were asked for")
	require.Less(t, time.Since(start), patience/2)

	// A lease that waits is served as soon as it can be.
	done := make(chan error, 1)
	go func() {
		l, err := cl.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "q", Holder: "m", Groups: 2, TTL: time.Minute, Wait: patience})
		if err == nil && len(l.Groups) != 2 {
			err = fmt.Errorf("%d groups", len(l.Groups))
		}
		done <- err
	}()
	require.NoError(t, cl.Release(ctx, "r", got.ID, ""))
	require.NoError(t, <-done)

	ts, err := cl.Tables(ctx, "r")
	require.NoError(t, err)
	require.Len(t, ts, 2)
	require.Equal(t, replay.TableTrain, ts[0].Table)
	require.Equal(t, cfg, ts[1].Config)
	require.Positive(t, ts[1].Refused["limiter"])
}

// TestTableOverTheWire: what replay.TableStore promises, through the client.
func TestTableOverTheWire(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	cl := c.dial("w1", RoleWorker)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	cfg := table.Default()
	cfg.Sampler, cfg.MaxTimesSampled = table.Selector{Kind: table.MaxHeap}, 0
	_, err := cl.SetTable(ctx, "r", "p", cfg, 0)
	require.NoError(t, err)
	_, err = cl.Append(ctx, []replay.Record{inTable("kept", "a"), inTable("kept", "b"), inTable("kept", "c")})
	require.NoError(t, err)
	res, err := cl.InsertGroups(ctx, "r", "p", []replay.GroupInsert{
		{Group: "one", LogIDs: []string{"a"}, HasPriority: true, Priority: 1},
		{Group: "two", LogIDs: []string{"b", "c"}, HasPriority: true, Priority: 2},
		{Group: "three", LogIDs: []string{"x"}},
	})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.Equal(t, replay.AppendResult{}, res[0])
	require.Equal(t, replay.AppendResult{}, res[1])
	require.NotEmpty(t, res[2].Rejected)
	n, err := cl.UpdatePriorities(ctx, "r", "p", []replay.GroupPriority{{Group: "one", Priority: 3}, {Group: "gone", Priority: 3}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	l, err := cl.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "p", Holder: "l", Groups: 1, TTL: time.Minute})
	require.NoError(t, err)
	require.Equal(t, "one", l.Groups[0].Group)
	require.EqualValues(t, 3, l.Groups[0].Priority)
	require.EqualValues(t, 1, l.Groups[0].Probability)
	_, err = cl.RemoveGroups(ctx, "r", "p", []string{"two", "one"}, "bad")
	require.ErrorIs(t, err, replay.ErrStale)
	n, err = cl.RemoveGroups(ctx, "r", "p", []string{"two"}, "bad")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	gs, next, err := cl.TableGroups(ctx, "r", "p", "", 10)
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, gs, 2)
	require.Equal(t, "leased", gs[0].State)
	require.Equal(t, "bad", gs[1].Reason)
	vs, err := cl.TableHistory(ctx, "r", "p")
	require.NoError(t, err)
	require.Equal(t, cfg, vs[0].Config)
	_, err = cl.TableHistory(ctx, "r", "none")
	require.True(t, errors.Is(err, replay.ErrNotFound), "%v", err)
}
