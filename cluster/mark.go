package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skein-rl/skein/replay"
)

// A mark is an entry of the raft log at which every replica takes the digest of
// its state: they are compared as of one index, while writes go on. It stands in
// the entry's extensions, beside a command that only lets time pass, so that the
// fold knows nothing of it.

const markPrefix = "mark:"

// markOf is an entry's mark, "" = none.
func markOf(l *raft.Log) string {
	id, ok := strings.CutPrefix(string(l.Extensions), markPrefix)
	if !ok {
		return ""
	}
	return id
}

// markResult is a replica's state at a mark.
type markResult struct {
	index  uint64
	digest string
	pairs  int
	err    error
}

// marks are the newest results, each kept for markKeep.
type marks struct {
	n  *Node
	mu sync.Mutex
	m  map[string]*markEntry
}

type markEntry struct {
	done   chan struct{}
	at     time.Time
	result markResult
}

const markKeep = 10 * time.Minute

func newMarks(n *Node) *marks { return &marks{n: n, m: make(map[string]*markEntry)} }

// entry is that of a mark, made when it is new.
func (m *marks) entry(id string) *markEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, e := range m.m {
		if time.Since(e.at) > markKeep {
			delete(m.m, k)
		}
	}
	e := m.m[id]
	if e == nil {
		e = &markEntry{done: make(chan struct{}), at: time.Now()}
		m.m[id] = e
	}
	return e
}

// take gets the state at a mark; the digest is computed beside the log.
func (m *marks) take(id string, snap *replay.StateSnapshot) {
	e := m.entry(id)
	if !m.n.tasks.run(func() {
		defer snap.Close()
		defer close(e.done)
		e.result.index = snap.Applied
		e.result.digest, e.result.pairs, e.result.err = snap.Digest()
	}) {
		snap.Close()
	}
}

// wait returns the state's digest at a mark that this node has applied.
func (m *marks) wait(ctx context.Context, id string) (markResult, error) {
	select {
	case <-m.entry(id).done:
		return m.entry(id).result, nil
	case <-time.After(time.Minute): // a node that took a snapshot in place of the entry never saw it
	case <-ctx.Done():
	}
	return markResult{}, fmt.Errorf("cluster: node %s did not apply the entry at which states are compared (it restored a snapshot, or started in between): verify again: %w", m.n.id, replay.ErrUnavailable)
}

// proposeMark puts a mark into the log and returns its index.
func (n *Node) proposeMark(ctx context.Context, id string) (uint64, error) {
	if err := n.mustLead(); err != nil {
		return 0, err
	}
	data, err := replay.EncodeCommand(replay.TickCmd{Now: n.now()})
	if err != nil {
		return 0, err
	}
	f := n.raft.ApplyLog(raft.Log{Data: data, Extensions: []byte(markPrefix + id)}, n.cfg.AppendTimeout)
	if err := n.await(ctx, f); err != nil {
		return 0, err
	}
	return f.Index(), nil
}
