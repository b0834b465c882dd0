package cluster

import (
	"context"
	"fmt"
	"io"

	"github.com/skein-rl/skein/replay"
)

// This file is replay.Operator on the leader, as far as it concerns the state;
// upkeep.go has what works on every node.

// Operator is the node's own store as operators see it; see Store.
func (n *Node) Operator() replay.Operator { return &nodeStore{n} }

// Tail implements replay.Operator.
func (s *nodeStore) Tail(ctx context.Context, q replay.TailRequest) (out []replay.TailItem, err error) {
	ctx, cancel := bounded(ctx, q.Wait)
	defer cancel()
	if err := s.n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return nil, err
	}
	err = s.n.pollRun(ctx, q.Run, q.Wait, func(context.Context) (bool, error) {
		err := s.n.store.View(func(kv replay.Reader) (err error) {
			out, err = replay.Tail(kv, q)
			return err
		})
		return len(out) > 0, err
	})
	return out, err
}

// TablesWithLogs implements replay.Operator.
func (s *nodeStore) TablesWithLogs(ctx context.Context, run string) ([]string, error) {
	return query(ctx, s.n, func(kv replay.Reader) ([]string, error) { return replay.TablesWithLogs(kv, run) })
}

// DropTable implements replay.Operator.
func (s *nodeStore) DropTable(ctx context.Context, run, table string) error {
	return s.do(ctx, replay.DropTableCmd{Now: s.n.now(), Run: run, Table: table})
}

// Redact implements replay.Operator. Twins travel in parts of about a chunk,
// each redacted as one.
func (s *nodeStore) Redact(ctx context.Context, run string, twins []replay.Twin, reason string) (n int, err error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	recs := make([]replay.Record, len(twins))
	logs := make([]replay.Redaction, len(twins))
	if err := s.n.view(ctx, func(kv replay.Reader) error {
		for i, t := range twins {
			items, err := replay.Items(kv, []string{t.LogID})
			if err != nil {
				return err
			}
			if items[0].Run != run {
				return fmt.Errorf("%w: redact log %q: it belongs to run %q, not %q", replay.ErrInvalid, t.LogID, items[0].Run, run)
			}
			it := items[0]
			it.Digest, it.Size = t.Digest, uint32(len(t.Bytes))
			recs[i] = replay.Record{Item: it, Bytes: t.Bytes}
			logs[i] = replay.Redaction{LogID: t.LogID, OldDigest: t.OldDigest, Digest: t.Digest, Size: it.Size}
		}
		return nil
	}); err != nil {
		return 0, err
	}
	good := sift(recs, s.n.cfg.Store.Verify)
	if len(good.good) < len(recs) {
		for i, r := range good.out {
			if r.Rejected != "" {
				return 0, fmt.Errorf("%w: redacted twin of log %q: %s", replay.ErrInvalid, recs[i].Item.LogID, r.Rejected)
			}
		}
	}
	for _, p := range pack(recs) {
		cmd := replay.RedactLogsCmd{Now: s.n.now(), Run: run, Logs: logs[p.from:p.to], Reason: reason}
		out, err := s.n.app.decide(ctx, recs[p.from:p.to], cmd)
		if n += out.updated; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Import implements replay.Operator.
func (s *nodeStore) Import(ctx context.Context, in replay.Import) (res replay.ImportResult, err error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.mustLead(); err != nil {
		return res, err
	}
	all := sift(in.Records, s.n.cfg.Store.Verify)
	var results []replay.AppendResult
	for _, p := range pack(all.good) {
		part := all.good[p.from:p.to]
		cmd := replay.ImportLogsCmd{Now: s.n.now(), Run: in.Run, Policy: in.Policy}
		for _, r := range part {
			cmd.Items = append(cmd.Items, r.Item)
		}
		out, err := s.n.app.decide(ctx, part, cmd)
		if err == nil && len(out.results) != len(part) {
			err = fmt.Errorf("cluster: fold answered %d of %d imported logs", len(out.results), len(part))
		}
		if err != nil {
			return res, err
		}
		results = append(results, out.results...)
	}
	res.Records = all.merge(results)
	if len(in.Groups) == 0 {
		return res, nil
	}
	got, err := s.n.propose(ctx, replay.ImportLogsCmd{Now: s.n.now(), Run: in.Run, Groups: in.Groups, Policy: in.Policy})
	res.Groups = got.Append
	return res, err
}

// decide makes records durable on a majority and then decides cmd, with no
// change of membership in between.
func (a *appender) decide(ctx context.Context, recs []replay.Record, cmd replay.Command) (appended, error) {
	p, err := a.submit(ctx, &pending{recs: recs, cmd: cmd})
	if err != nil {
		return appended{}, err
	}
	return a.wait(ctx, p)
}

// Snapshot implements replay.Operator.
func (s *nodeStore) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	vctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.view(vctx, func(replay.Reader) error { return nil }); err != nil {
		return nil, err
	}
	snap := s.n.store.Snapshot()
	r, w := io.Pipe()
	if !s.n.tasks.run(func() {
		defer snap.Close()
		_, err := snap.WriteTo(w)
		_ = w.CloseWithError(err)
	}) {
		snap.Close()
		return nil, fmt.Errorf("cluster: node %s is closing: %w", s.n.id, replay.ErrUnavailable)
	}
	stop := context.AfterFunc(s.n.ctx, func() { _ = r.CloseWithError(replay.ErrUnavailable) })
	return &snapshotReader{r, stop}, nil
}

type snapshotReader struct {
	*io.PipeReader
	stop func() bool
}

func (r *snapshotReader) Close() error {
	r.stop()
	return r.PipeReader.Close()
}

// ReadExact implements replay.Operator.
func (s *nodeStore) ReadExact(ctx context.Context, logs []replay.Exact) ([]replay.Record, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.mustLead(); err != nil {
		return nil, err
	}
	recs, err := s.n.readExact(ctx, logs)
	if err != nil {
		return nil, err
	}
	return unpackAll(recs)
}

// readExact returns records as they are stored; it asks the other nodes for what is not here.
func (n *Node) readExact(ctx context.Context, logs []replay.Exact) ([]replay.Record, error) {
	recs, err := n.store.ReadExact(logs)
	if err != nil || len(recs) == len(logs) {
		return recs, err
	}
	for _, p := range n.peers.others("") {
		left := without(logs, recs)
		if len(left) == 0 {
			break
		}
		more, err := pullExact(ctx, p, left)
		if err != nil {
			n.log.Warn("read from a peer", "peer", p.String(), "err", err)
		}
		recs = append(recs, more...)
	}
	return recs, nil
}

// without leaves those of the logs that no record is of.
func without(logs []replay.Exact, recs []replay.Record) (left []replay.Exact) {
	have := make(map[replay.Exact]bool, len(recs))
	for _, r := range recs {
		have[replay.Exact{LogID: r.Item.LogID, Digest: r.Item.Digest}] = true
	}
	for _, x := range logs {
		if !have[x] {
			left = append(left, x)
		}
	}
	return left
}
