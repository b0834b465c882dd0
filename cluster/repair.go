package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

const (
	repairEvery = time.Second
	repairBatch = 256  // payloads asked of a peer at once
	repairLook  = 4096 // payloads looked for at once
	blobRounds  = 5    // of repair between looks for blobs

	collectEvery = 2 * time.Minute
	scrubEvery   = 24 * time.Hour
	scrubLimit   = time.Hour
	blobGrace    = time.Hour // between a blob and the commit that refers to it
	compactGrace = time.Hour // between a log's bytes and their commit
	compactDead  = 0.3       // of a file's bytes, from which on it is rewritten
)

// repairer pulls what this replica should hold and does not: payloads whose ids
// are committed, and blobs that runs refer to. It gives a payload that is still
// on its way from the leader a round's grace.
type repairer struct {
	n *Node

	mu   sync.Mutex
	last scan
}

// scan is what one look at the storage found: at raft index applied, missing
// committed payloads were not here.
type scan struct {
	applied uint64
	missing int
}

func newRepairer(n *Node) *repairer { return &repairer{n: n} }

// run starts the rounds. A replica of one has nobody to pull from.
func (r *repairer) run() {
	r.n.tasks.run(r.collect)
	r.n.tasks.run(r.scrubDaily)
	if r.n.peers != nil {
		r.n.tasks.run(r.loop)
	}
}

// collect deletes, now and then, blobs that no step came to refer to (those of a
// learner that died before its commit) and checkpoints that their run no longer
// keeps. Only a replica that knows the newest commits may judge.
func (r *repairer) collect() {
	t := time.NewTicker(collectEvery)
	defer t.Stop()
	for {
		select {
		case <-r.n.ctx.Done():
			return
		case <-t.C:
		}
		if !r.n.upToDate() {
			continue
		}
		k, size, err := r.n.store.CollectBlobs(time.Now(), blobGrace)
		if err != nil {
			r.n.log.Warn("collect blobs", "err", err)
		} else if k > 0 {
			r.n.log.Info("blobs collected", "blobs", k, "bytes", size)
		}
	}
}

// scrubDaily looks for damage that nobody has read yet, while the other replicas
// still have what is lost here; then it frees what was never committed.
func (r *repairer) scrubDaily() {
	t := time.NewTicker(scrubEvery)
	defer t.Stop()
	for {
		select {
		case <-r.n.ctx.Done():
			return
		case <-t.C:
			r.scrub()
			r.compact()
		}
	}
}

// scrub verifies every stored record; the rounds repair those it finds damaged.
func (r *repairer) scrub() {
	ctx, cancel := context.WithTimeout(r.n.ctx, scrubLimit)
	defer cancel()
	rep, err := r.n.store.Scrub(ctx)
	switch {
	case r.n.ctx.Err() != nil:
	case err != nil:
		r.n.log.Warn("scrub", "err", err)
	case rep.Gaps > 0:
		r.n.log.Error("scrub found damage", "records", rep.Records, "gaps", rep.Gaps, "bytes", rep.Bytes, "lost", rep.Lost)
	default:
		r.n.log.Info("scrubbed", "records", rep.Records)
	}
}

// compact frees the bytes of logs that were never committed.
func (r *repairer) compact() {
	if !r.n.upToDate() { // what is committed must be known
		return
	}
	ctx, cancel := context.WithTimeout(r.n.ctx, scrubLimit)
	defer cancel()
	rep, err := r.n.store.Compact(ctx, time.Now(), compactGrace, compactDead)
	switch {
	case r.n.ctx.Err() != nil:
	case err != nil:
		r.n.log.Warn("compact segments", "err", err)
	case rep.Segments > 0:
		r.n.log.Info("segments compacted", "segments", rep.Segments, "moved", rep.Moved, "dropped", rep.Dropped, "bytes", rep.Bytes)
	}
}

// upToDate: this node leads, or heard of its leader just now and has applied
// what that one committed.
func (n *Node) upToDate() bool {
	if n.ready.Load() != 0 {
		return true
	}
	return n.raft.State() == raft.Follower && time.Since(n.raft.LastContact()) < n.cfg.Heartbeat &&
		n.raft.AppliedIndex() >= n.raft.CommitIndex()
}

// found is the newest scan.
func (r *repairer) found() scan {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *repairer) loop() {
	t := time.NewTicker(repairEvery)
	defer t.Stop()
	var before map[string]bool
	for round := 0; ; round++ {
		var behind bool
		if before, behind = r.round(before); behind {
			continue
		}
		if round%blobRounds == 0 {
			r.n.blobs.repair()
		}
		select {
		case <-r.n.ctx.Done():
			return
		case <-t.C:
		}
	}
}

// round pulls what was missing before and still is, and returns what is
// missing now. A node that lacks more than one look shows, as one that has just
// joined does, is not waiting for the leader: it pulls all of it at once, and
// behind says that there was more and that pulling helps.
func (r *repairer) round(before map[string]bool) (now map[string]bool, behind bool) {
	applied := r.n.store.AppliedIndex() // first: the list is then no older
	missing, err := r.n.store.MissingPayloads(repairLook)
	if err != nil {
		r.n.log.Warn("look for missing payloads", "err", err)
		return before, false
	}
	lacking := len(missing)
	if _, voter := r.n.isMember(r.n.id); !voter && lacking == 0 {
		// The vote waits for blobs too, or a majority with newcomers might hold
		// none of an old one.
		if lacking, err = r.n.blobs.lacking(); err != nil {
			r.n.log.Warn("look for missing blobs", "err", err)
			return before, false
		}
	}
	r.mu.Lock()
	r.last = scan{applied, lacking}
	r.mu.Unlock()
	behind = len(missing) == repairLook
	now = make(map[string]bool, len(missing))
	var due []replay.Item
	for _, it := range missing {
		now[it.LogID] = true
		if behind || before[it.LogID] {
			due = append(due, it)
		}
	}
	if len(due) > 0 {
		behind = r.pullDue(due) && behind
	}
	return now, behind
}

// pullDue pulls payloads and tells whether it got all of them.
func (r *repairer) pullDue(items []replay.Item) bool {
	ctx, cancel := context.WithTimeout(r.n.ctx, 30*time.Second)
	defer cancel()
	left, err := r.pull(ctx, items)
	switch {
	case r.n.ctx.Err() != nil:
		return false
	case len(left) > 0:
		r.n.log.Warn("payloads not repaired yet", "missing", len(left), "first", left[0].LogID, "err", err)
		return false
	}
	r.n.metrics.repaired.Add(float64(len(items)))
	r.n.log.Info("payloads repaired", "pulled", len(items))
	return true
}

// pull gets payloads from whatever peer has them, the leader first, and stores
// them. It returns the items nobody had and what the peers said.
func (r *repairer) pull(ctx context.Context, items []replay.Item) (left []replay.Item, err error) {
	_, leader := r.n.raft.LeaderWithID()
	var errs []error
	for _, p := range r.n.peers.others(string(leader)) {
		if len(items) == 0 {
			break
		}
		got := make(map[string]bool)
		for part := range slices.Chunk(items, repairBatch) {
			if err := r.pullFrom(ctx, p, part, got); err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", p, err))
				break
			}
		}
		var still []replay.Item
		for _, it := range items {
			if !got[it.LogID] {
				still = append(still, it)
			}
		}
		items = still
	}
	return items, errors.Join(errs...)
}

// pullFrom stores what one peer has of the items and adds it to got.
func (r *repairer) pullFrom(ctx context.Context, p *peer, items []replay.Item, got map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.n.cfg.AppendTimeout)
	defer cancel()
	want := make(map[string]replay.Item, len(items))
	req := &pb.PullRequest{}
	for _, it := range items {
		want[it.LogID] = it
		req.LogIds = append(req.LogIds, it.LogID)
	}
	st, err := p.Pull(ctx, req)
	if err != nil {
		return p.fail(err)
	}
	for {
		resp, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return p.fail(err)
		}
		var recs []replay.Record
		for _, x := range resp.GetRecords() {
			rec := recordFrom(x)
			it, ok := want[rec.Item.LogID]
			if !ok || it.Digest != rec.Item.Digest || it.Size != rec.Item.Size {
				return fmt.Errorf("cluster: node %s sent log %q of %d bytes with digest %q: not what is committed here",
					p, rec.Item.LogID, rec.Item.Size, rec.Item.Digest)
			}
			rec.Item = it
			if err := checkRecord(&rec, r.n.cfg.Store.Verify); err != nil {
				return fmt.Errorf("cluster: node %s: %w", p, err)
			}
			recs = append(recs, rec)
		}
		if err := r.n.store.PutChunk(ctx, max(r.n.raft.CurrentTerm(), r.n.store.Term()), recs); err != nil {
			return err
		}
		for _, rec := range recs {
			got[rec.Item.LogID] = true
		}
	}
}

// read returns committed records as they are stored, pulling those not here.
func (r *repairer) read(ctx context.Context, ids []string) ([]replay.Record, error) {
	recs, missing, err := r.n.store.ReadPacked(ids)
	if err != nil || len(missing) == 0 {
		return recs, err
	}
	left, err := r.pull(ctx, missing)
	if len(left) == 0 {
		if recs, missing, err = r.n.store.ReadPacked(ids); err != nil || len(missing) == 0 {
			return recs, err
		}
		left = missing
	}
	return nil, fmt.Errorf("cluster: %d payloads are on no node that answers, first %q: %w: %w",
		len(left), left[0].LogID, replay.ErrUnavailable, errors.Join(err, ctx.Err()))
}

// Pull is the serving side: those of the asked payloads that are here.
func (s *peerServer) Pull(req *pb.PullRequest, st pb.Peer_PullServer) error {
	if n := len(req.GetLogIds()); n > repairBatch {
		return toStatus(fmt.Errorf("%w: pull of %d logs: ask for at most %d", replay.ErrInvalid, n, repairBatch))
	}
	ids, err := committed(s.n.store, req.GetLogIds())
	if err != nil {
		return toStatus(err)
	}
	return toStatus(streamRecords(ids, func(ids []string) ([]replay.Record, error) {
		recs, _, err := s.n.store.ReadPacked(ids)
		return slices.DeleteFunc(recs, func(r replay.Record) bool { return r.Stored() == 0 }), err
	}, st.Send))
}

// streamRecords sends records in messages of about a chunk, reading a few at a
// time.
func streamRecords(ids []string, read func([]string) ([]replay.Record, error), send func(*pb.FetchResponse) error) error {
	out, size := &pb.FetchResponse{}, 0
	for part := range slices.Chunk(ids, 16) {
		recs, err := read(part)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if size > 0 && size+r.Stored() > chunkBytes {
				if err := send(out); err != nil {
					return err
				}
				out, size = &pb.FetchResponse{}, 0
			}
			out.Records, size = append(out.Records, recordTo(r)), size+r.Stored()
		}
	}
	if len(out.Records) == 0 {
		return nil
	}
	return send(out)
}

// isMember tells whether a node is in raft's configuration, and how.
func (n *Node) isMember(id string) (member, voter bool) {
	f := n.raft.GetConfiguration()
	if f.Error() != nil {
		return false, false
	}
	for _, s := range f.Configuration().Servers {
		if string(s.ID) == id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}
