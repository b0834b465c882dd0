package cluster

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"

	"github.com/skein-rl/skein/internal/durable"
)

// openRaft opens the storage and starts raft on it.
func (n *Node) openRaft(founder bool) (err error) {
	if n.store, err = openStore(n.path(dirStore), n.cfg); err != nil {
		return err
	}
	for _, dir := range []string{dirRaft, filepath.Join(dirSnapshots, "snapshots")} { // raft makes the latter without syncing its name
		if err := durable.MkdirAll(n.path(dir), 0o700); err != nil {
			return err
		}
	}
	n.wal, err = raftwal.Open(n.path(dirRaft), raftwal.WithSegmentSize(4<<20), raftwal.WithLogger(raftLogger(n.log)))
	if err != nil {
		return fmt.Errorf("cluster: open raft log in %s: %w", n.path(dirRaft), err)
	}
	if err := durable.SyncDir(n.path(dirRaft)); err != nil { // the log's own does not see to its index
		return err
	}
	var logs raft.LogStore = n.wal
	if n.cfg.wrapLog != nil {
		logs = n.cfg.wrapLog(logs)
	}
	n.dlog = newDeadlineLog(logs, n.cfg.DiskTimeout, n.log)
	var stable raft.StableStore = n.wal
	if n.cfg.wrapStable != nil {
		stable = n.cfg.wrapStable(stable)
	}
	stable = &patientStable{stable, n.ctx, n.log}
	cache, err := raft.NewLogCache(64, n.dlog) // an entry has up to maxItems items
	if err != nil {
		return err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(n.path(dirSnapshots), 2, raftLogger(n.log))
	if err != nil {
		return fmt.Errorf("cluster: open snapshots: %w", err)
	}
	n.app = newAppender(n)
	n.repairs = newRepairer(n)
	n.blobs = newBlobs(n)
	n.marks = newMarks(n)
	n.fsm = &fsm{store: n.store, changes: n.changes, log: n.log, onFail: n.leave, onMark: n.marks.take}

	hasState, err := raft.HasExistingState(cache, n.wal, snaps)
	if err != nil {
		return fmt.Errorf("cluster: read raft state: %w", err)
	}
	restore, err := n.checkHistory(snaps)
	if err != nil {
		return err
	}
	if hasState {
		err = n.markMember()
	} else if err = n.checkNotMember(); err == nil && founder {
		err = n.bootstrap(cache, snaps)
	}
	if err != nil {
		return err
	}
	conf := n.raftConfig()
	conf.NoSnapshotRestoreOnStart = !restore
	leads := make(chan bool, 16)
	conf.NotifyCh = leads
	if n.raft, err = raft.NewRaft(conf, n.fsm, cache, stable, snaps, n.trans); err != nil {
		return fmt.Errorf("cluster: start raft: %w", err)
	}
	close(n.opened)
	n.app.run()
	n.repairs.run()
	n.tasks.run(func() { n.lead(leads) })
	return nil
}

// bootstrap makes a raft group of this node alone.
func (n *Node) bootstrap(logs raft.LogStore, snaps raft.SnapshotStore) error {
	first := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.id)}}}
	if err := raft.BootstrapCluster(n.raftConfig(), logs, n.wal, snaps, n.trans, first); err != nil {
		return fmt.Errorf("cluster: bootstrap: %w", err)
	}
	return n.markMember()
}

// markMember notes once that this node has been in the raft group.
func (n *Node) markMember() error {
	if n.member {
		return nil
	}
	if err := writeFile(n.path(fileMember), []byte(n.id+"\n"), 0o600); err != nil {
		return err
	}
	n.member = true
	return nil
}

// checkNotMember refuses to start a former member without its log: it would
// have forgotten its votes and what it acknowledged, or as the founder make a
// second group beside the first.
func (n *Node) checkNotMember() error {
	mark, err := readFile(n.path(fileMember))
	if err == nil && (mark != nil || n.store.AppliedIndex() > 0) {
		err = fmt.Errorf("cluster: node %s was a member, and its raft log in %s is lost: restore it, "+
			"or remove the node from the cluster and join with an empty directory and another id", n.id, n.path(dirRaft))
	}
	return err
}

// checkHistory compares the store with raft's log. The store is usually ahead
// of the newest snapshot and needs no restore; it must never be ahead of the
// log, or entries would be skipped that it has not seen.
func (n *Node) checkHistory(snaps raft.SnapshotStore) (restore bool, err error) {
	last, err := n.wal.LastIndex()
	if err != nil {
		return false, fmt.Errorf("cluster: read raft log: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return false, fmt.Errorf("cluster: list snapshots: %w", err)
	}
	var snap uint64
	if len(list) > 0 {
		snap = list[0].Index
	}
	first, err := n.wal.FirstIndex()
	if err != nil {
		return false, fmt.Errorf("cluster: read raft log: %w", err)
	}
	if first > snap+1 { // raft would panic
		return false, fmt.Errorf("cluster: the raft log in %s begins at %d and the newest snapshot in %s ends at %d: what lay between is lost; "+
			"restore the snapshot, or remove this node from the cluster and join with an empty directory and another id", n.path(dirRaft), first, n.path(dirSnapshots), snap)
	}
	applied := n.store.AppliedIndex()
	if applied > max(last, snap) {
		return false, fmt.Errorf("cluster: the store in %s has applied raft index %d, but the raft log ends at %d: "+
			"the directory %s was lost or replaced; restore it, or start this node anew with an empty directory",
			n.cfg.Dir, applied, max(last, snap), dirRaft)
	}
	return applied < snap, nil
}

func (n *Node) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.id)
	c.Logger = raftLogger(n.log)
	c.HeartbeatTimeout = n.cfg.Heartbeat
	c.ElectionTimeout = n.cfg.Heartbeat
	// Below the heartbeat timeout: an old leader steps down before a new one
	// can be elected.
	c.LeaderLeaseTimeout = n.cfg.Heartbeat * 3 / 4
	c.CommitTimeout = min(250*time.Millisecond, n.cfg.Heartbeat/8)
	c.MaxAppendEntries = 128
	c.BatchApplyCh = true
	// A log that is to be kept short is looked at oftener.
	c.SnapshotInterval = min(max(30*time.Second*time.Duration(n.cfg.SnapshotEvery)/4096, 2*time.Second), 30*time.Second)
	c.SnapshotThreshold = n.cfg.SnapshotEvery
	c.TrailingLogs = n.cfg.SnapshotEvery
	c.ShutdownOnRemove = false
	c.NoLegacyTelemetry = true
	return c
}

// electSelf makes the only voter leader at once instead of after a timeout
// that is there for others.
func (n *Node) electSelf() error {
	voters, _ := n.servers()
	if len(voters) != 1 || voters[0] != n.id {
		return nil
	}
	var resp raft.TimeoutNowResponse
	req := raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax,
		ID: []byte(n.id), Addr: []byte(n.trans.LocalAddr())}}
	if err := n.trans.TimeoutNow(raft.ServerID(n.id), n.trans.LocalAddr(), &req, &resp); err != nil {
		n.log.Info("no early election; the timeout will do", "err", err)
	}
	return nil
}
