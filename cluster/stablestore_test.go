package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// brokenStable fails while broken.
type brokenStable struct {
	raft.StableStore
	broken atomic.Bool
	failed atomic.Int32
}

func (b *brokenStable) SetUint64(k []byte, v uint64) error {
	if b.broken.Load() {
		b.failed.Add(1)
		return errors.New("input/output error")
	}
	return b.StableStore.SetUint64(k, v)
}

// A node whose disk fails while it wants to become a candidate stands still
// until the disk works again, and then takes part; raft would panic.
func TestTermNotSavedIsNoPanic(t *testing.T) {
	t.Parallel()
	stables := make([]*brokenStable, 3)
	c := newTestCluster(t, 3, func(i int, conf *Config) {
		conf.wrapStable = func(s raft.StableStore) raft.StableStore {
			stables[i] = &brokenStable{StableStore: s}
			return stables[i]
		}
	})
	ctx := testCtx(t)
	cl := c.dial("w", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	lead := c.leader()
	a, b := (lead+1)%3, (lead+2)%3
	stables[a].broken.Store(true)
	stables[b].broken.Store(true)
	require.NoError(t, c.nodes[lead].crash())
	eventually(t, "a candidate that can't save its term", func() bool {
		return stables[a].failed.Load()+stables[b].failed.Load() > 0
	})
	stables[a].broken.Store(false)
	stables[b].broken.Store(false)
	_, err := cl.Append(ctx, []replay.Record{testRecord("r", "a", 10)})
	require.NoError(t, err)
}

func TestPatientStableEndsWithItsNode(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &brokenStable{StableStore: raft.NewInmemStore()}
	b.broken.Store(true)
	s := &patientStable{b, ctx, testLog(t)}
	done := make(chan bool, 1)
	go func() {
		returned := false
		defer func() { done <- returned }()
		_ = s.SetUint64([]byte("CurrentTerm"), 1)
		returned = true
	}()
	eventually(t, "a try", func() bool { return b.failed.Load() > 1 })
	cancel()
	require.False(t, <-done, "raft must not go on with a term that is not saved")
}
