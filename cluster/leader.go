package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skein-rl/skein/replay"
)

// lead follows this node's leadership: it takes over when raft elects it and
// lets go when raft takes it away.
func (n *Node) lead(leads <-chan bool) {
	release := func() {}
	defer func() { release() }()
	for {
		select {
		case <-n.ctx.Done():
			return
		case leader := <-leads:
			release()
			n.ready.Store(0)
			n.changes.wake() // whoever waits here must look elsewhere
			if !leader {
				release = func() {}
				continue
			}
			ctx, cancel := context.WithCancel(n.ctx)
			done := make(chan struct{})
			if !n.tasks.run(func() { defer close(done); n.rule(ctx) }) {
				close(done)
			}
			release = func() { cancel(); <-done }
		}
	}
}

// rule is one term of leadership. It serves once everything that earlier
// leaders committed is applied here.
func (n *Node) rule(ctx context.Context) {
	for {
		term := n.raft.CurrentTerm()
		err := n.await(ctx, n.raft.Barrier(n.cfg.AppendTimeout))
		if err == nil && n.raft.CurrentTerm() == term {
			if err = n.store.Fence(term); err == nil {
				n.clock.Lead()
				n.ready.Store(term)
				break
			}
		}
		if ctx.Err() != nil || n.raft.State() != raft.Leader {
			return
		}
		n.log.Warn("leader can't serve yet", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	defer n.ready.Store(0)
	n.metrics.leads.Set(1)
	defer n.metrics.leads.Set(0)
	n.changes.wake()
	n.log.Info("leads", "term", n.ready.Load())
	t := time.NewTicker(n.cfg.Tick)
	defer t.Stop()
	for {
		n.reconcile(ctx)
		n.letTimePass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// letTimePass proposes a tick when a ticket or lease has run out, so that the
// fold hands it on although nobody calls.
func (n *Node) letTimePass(ctx context.Context) {
	var due int64
	err := n.store.View(func(kv replay.Reader) (err error) {
		due, err = replay.NextExpiry(kv)
		return err
	})
	now := n.now()
	if err == nil && (due == 0 || due > now.UnixNano()) {
		return
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, n.cfg.AppendTimeout)
		defer cancel()
		_, err = n.propose(ctx, replay.TickCmd{Now: now})
	}
	if err != nil && ctx.Err() == nil {
		n.log.Warn("expiry tick failed", "err", err)
	}
}

// notLeader says where the leader is, as far as this node knows.
func (n *Node) notLeader() error {
	e := &notLeaderError{node: n.id}
	if n.raft == nil {
		return e
	}
	addr, id := n.raft.LeaderWithID()
	if id == "" || string(id) == n.id { // losing it, or not ready yet
		return e
	}
	e.id, e.addr = string(id), string(addr)
	if a, ok := n.book.addr(e.id); ok {
		e.addr = a
	}
	return e
}

// mustLead is nil while this node leads and serves.
func (n *Node) mustLead() error {
	if err := n.fsm.failed.Load(); err != nil {
		return *err
	}
	if n.ready.Load() == 0 {
		return n.notLeader()
	}
	return nil
}

// await waits for raft's answer or for ctx. After ctx the outcome is unknown.
func (n *Node) await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	if !n.asked.run(func() { done <- f.Error() }) {
		return fmt.Errorf("cluster: node %s is closing: %w", n.id, replay.ErrUnavailable)
	}
	select {
	case err := <-done:
		return n.raftError(err)
	case <-ctx.Done():
		return fmt.Errorf("cluster: node %s: no majority answered in time: %w", n.id, ctx.Err())
	}
}

// raftError translates raft's errors.
func (n *Node) raftError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader()
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		return fmt.Errorf("cluster: node %s lost the lead in between; the outcome is unknown: %w", n.id, replay.ErrUnavailable)
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, errDiskStalled):
		return fmt.Errorf("cluster: node %s: %w: %w", n.id, err, replay.ErrUnavailable)
	}
	// A failed write of the raft log: this node has stepped down.
	return fmt.Errorf("cluster: node %s: raft: %w: %w", n.id, err, replay.ErrUnavailable)
}

// propose commits one command and returns the fold's answer, whose Err is
// returned as the error.
func (n *Node) propose(ctx context.Context, cmd replay.Command) (replay.Result, error) {
	if err := n.mustLead(); err != nil {
		return replay.Result{}, err
	}
	data, err := replay.EncodeCommand(cmd)
	if err != nil {
		return replay.Result{}, err
	}
	f := n.raft.Apply(data, n.cfg.AppendTimeout)
	if err := n.await(ctx, f); err != nil {
		return replay.Result{}, err
	}
	res, ok := f.Response().(replay.Result)
	if !ok {
		return replay.Result{}, fmt.Errorf("cluster: fold answered %T", f.Response())
	}
	return res, res.Err
}

// view reads the fold's state as of now: this node leads with everything
// applied, and a majority confirms that nobody else does.
func (n *Node) view(ctx context.Context, fn func(kv replay.Reader) error) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	if err := n.await(ctx, n.raft.VerifyLeader()); err != nil {
		return err
	}
	return n.store.View(fn)
}
