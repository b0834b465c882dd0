package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"

	"github.com/skein-rl/skein/replay"
)

// RestoreSource is a backup as it is read back. Its readers verify what they
// give.
type RestoreSource interface {
	// State is the state snapshot.
	State() io.Reader
	// Records calls fn with the bytes of logs, by id and digest; some may not
	// belong to the state.
	Records(fn func([]replay.Record) error) error
	// Blobs calls fn with every blob.
	Blobs(fn func([]byte) error) error
}

// RestoreReport says what a restored node holds.
type RestoreReport struct {
	Node  string // its id
	Index uint64 // raft index of the state
	Logs  int
	Blobs int
}

// restoreTerm is the raft term that a restored state counts as committed in.
const restoreTerm = 1

// restoreBatch is how many bytes of logs are stored at a time.
const restoreBatch = 8 << 20

// Restore makes, in an empty directory, a new cluster of one node that holds a
// backup; it does not start it. Others join it as they join any. local makes a
// directory for OpenLocal instead, without listener and certificates. Config's
// ID names the node; Listen, Join and Token mean nothing here.
//
// The new cluster has an authority and a join token of its own: processes of the
// old one cannot reach it, and leases and tickets they held run out by
// themselves. After an error the directory is of no use: empty it and begin
// again.
func Restore(ctx context.Context, cfg Config, local bool, src RestoreSource) (rep RestoreReport, err error) {
	cfg.Listen, cfg.Advertise, cfg.Join, cfg.Token = "", "", nil, ""
	if err := cfg.Validate(); err != nil {
		return rep, err
	}
	if err := mustBeEmpty(cfg.Dir); err != nil {
		return rep, err
	}
	n, err := newNode(cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, n.closeUnopened()) }()
	if n.id = localID; !local {
		if _, err := n.identify(ctx); err != nil {
			return rep, err
		}
		n.id = n.ident.ID
	}
	rep.Node = n.id
	l, err := replay.OpenLocal(n.path(dirStore), n.cfg.Store)
	if err != nil {
		return rep, err
	}
	err = restoreStore(ctx, l, src, &rep)
	if err == nil {
		err = n.restoreRaft(l, rep.Index)
	}
	return rep, errors.Join(err, l.Close())
}

func mustBeEmpty(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("cluster: restore: directory %s is not empty (it has %q): name a new one", dir, names[0].Name())
	}
	return err
}

// restoreStore loads the state first, so that it is known which bytes belong to
// it.
func restoreStore(ctx context.Context, l *replay.Local, src RestoreSource, rep *RestoreReport) error {
	if err := l.Restore(src.State()); err != nil {
		return err
	}
	rep.Index = l.AppliedIndex()
	if rep.Index == 0 {
		return fmt.Errorf("%w: cluster: restore: the backup's state has raft index 0", replay.ErrInvalid)
	}
	err := src.Records(func(recs []replay.Record) error {
		var batch []replay.Record
		size := 0
		flush := func() error {
			err := l.PutChunk(ctx, 0, batch)
			rep.Logs += len(batch)
			batch, size = nil, 0
			return err
		}
		for _, r := range recs {
			var items []replay.Item
			err := l.View(func(kv replay.Reader) (err error) {
				items, err = replay.Items(kv, []string{r.Item.LogID})
				return err
			})
			if errors.Is(err, replay.ErrNotFound) || err == nil && items[0].Digest != r.Item.Digest {
				continue // of another backup
			}
			if err != nil {
				return err
			}
			r.Item = items[0]
			batch, size = append(batch, r), size+len(r.Bytes)
			if size >= restoreBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return errors.Join(flush(), ctx.Err())
	})
	if err != nil {
		return fmt.Errorf("cluster: restore logs: %w", err)
	}
	if err := src.Blobs(func(b []byte) error {
		rep.Blobs++
		_, err := l.PutBlob(b)
		return errors.Join(err, ctx.Err())
	}); err != nil {
		return fmt.Errorf("cluster: restore blobs: %w", err)
	}
	check, err := l.VerifyAll(ctx)
	if err == nil && (check.Missing > 0 || check.MissingBlobs > 0) {
		err = fmt.Errorf("%w: the backup lacks, or has damaged, %d of %d logs and %d blobs, among them %q (skein replay backups --check looks at others)",
			replay.ErrInvalid, check.Missing, check.Logs, check.MissingBlobs, check.Bad)
	}
	if err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	return nil
}

// restoreRaft gives the node a raft history that begins with a snapshot of the
// restored state, in a group of its own.
func (n *Node) restoreRaft(l *replay.Local, index uint64) error {
	if err := os.MkdirAll(n.path(dirRaft), 0o700); err != nil {
		return err
	}
	wal, err := raftwal.Open(n.path(dirRaft), raftwal.WithSegmentSize(4<<20), raftwal.WithLogger(raftLogger(n.log)))
	if err != nil {
		return fmt.Errorf("cluster: restore: make the raft log: %w", err)
	}
	err = errors.Join(wal.SetUint64([]byte("CurrentTerm"), restoreTerm), wal.Close())
	if err != nil {
		return fmt.Errorf("cluster: restore: raft term: %w", err)
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(n.path(dirSnapshots), 2, raftLogger(n.log))
	if err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(n.id)) // encodes the member's address
	group := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.id)}}}
	sink, err := snaps.Create(raft.SnapshotVersionMax, index, restoreTerm, group, index, trans)
	if err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	state := l.Snapshot()
	defer state.Close()
	if _, err := state.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	return n.markMember()
}

// RebuildIndex makes the index of a stopped node anew when it is lost or
// damaged: where payloads are follows from the segment files, and the fold's
// state from the node's raft snapshot and log, which the next start applies. What
// is in neither is pulled from the other nodes then.
func RebuildIndex(cfg Config) (rep replay.RebuildReport, err error) {
	if err := cfg.Validate(); err != nil {
		return rep, err
	}
	if _, err := os.Stat(cfg.Dir); err != nil {
		return rep, fmt.Errorf("cluster: rebuild index: %w", err)
	}
	n, err := newNode(cfg) // locks the directory: a running node keeps it
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, n.closeUnopened()) }()
	for _, name := range []string{dirStore, dirRaft} {
		if _, err := os.Stat(n.path(name)); err != nil {
			return rep, fmt.Errorf("cluster: rebuild index: %s is no directory of a node: it has no %s: %w", cfg.Dir, name, err)
		}
	}
	if err := n.checkReplayable(); err != nil {
		return rep, err
	}
	return replay.RebuildIndex(n.path(dirStore), n.cfg.Store)
}

// checkReplayable says whether raft's snapshot and log lead from nothing to the
// newest state.
func (n *Node) checkReplayable() error {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(n.path(dirSnapshots), 2, raftLogger(n.log))
	if err != nil {
		return fmt.Errorf("cluster: rebuild index: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return fmt.Errorf("cluster: rebuild index: list snapshots: %w", err)
	}
	wal, err := raftwal.Open(n.path(dirRaft), raftwal.WithSegmentSize(4<<20), raftwal.WithLogger(raftLogger(n.log)))
	if err != nil {
		return fmt.Errorf("cluster: rebuild index: open the raft log: %w", err)
	}
	first, err := wal.FirstIndex()
	last, lerr := wal.LastIndex()
	if err = errors.Join(err, lerr, wal.Close()); err != nil {
		return fmt.Errorf("cluster: rebuild index: %w", err)
	}
	switch {
	case len(list) > 0 && (first == 0 || list[0].Index+1 >= first):
		return nil
	case len(list) == 0 && first == 1:
		return nil
	}
	return fmt.Errorf("cluster: rebuild index: the raft log in %s holds entries %d to %d and there is no snapshot before them: "+
		"remove this node from its cluster and join with an empty directory; a sole node needs a backup (skein replay restore)", n.path(dirRaft), first, last)
}

// closeUnopened closes a node of which only the directory was used.
func (n *Node) closeUnopened() error {
	n.stop()
	n.tasks.close()
	n.metrics.close()
	return n.lock.Close()
}
