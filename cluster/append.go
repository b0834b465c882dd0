package cluster

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/skein-rl/skein/replay"
)

// The way of an append on the leader:
//
//	callers -> gather -> chunk -> own disk    \
//	                           -> follower 1   > majority -> gather -> one raft entry -> callers
//	                           -> follower 2  /
//
// Many callers share a chunk and many chunks share a raft entry. A stage starts
// at once when little of it is under way; else it gathers more until something
// ends, so that batches grow with the load and nobody waits for company.

// pending is one caller's records on their way.
type pending struct {
	recs    []replay.Record
	size    int64
	done    chan appended // holds one
	release func()        // of its room
	// cmd is decided in place of the append when the records are durable; what
	// became of it is set by the committer. nil = append them.
	cmd     replay.Command
	answer  replay.Result
	refused error
}

type appended struct {
	results []replay.AppendResult
	updated int // of a cmd
	err     error
}

// appender is that pipeline.
type appender struct {
	n      *Node
	room   *semaphore.Weighted // inFlight bytes
	in     chan *pending
	commit chan *chunk // on a majority of disks
	own    *chunkQueue // to this node's disk
	repl   *replicator
	slots  chan struct{} // held by chunks on their way to a majority
	nextID uint64        // of chunks; gather's only
}

const (
	chunksAtOnce  = 2 // on their way to a majority of disks
	entriesAtOnce = 2 // on their way through raft and the fold
)

func newAppender(n *Node) *appender {
	return &appender{
		n: n, room: semaphore.NewWeighted(inFlight),
		in: make(chan *pending, 256), commit: make(chan *chunk, 1024), own: newChunkQueue(),
		repl: newReplicator(n), slots: make(chan struct{}, chunksAtOnce),
	}
}

func (a *appender) run() {
	a.n.tasks.run(a.gather)
	a.n.tasks.run(a.writeOwn)
	a.n.tasks.run(a.commitAll)
}

// append is replay.Store's Append. Large requests go in parts that fit a chunk.
func (a *appender) append(ctx context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	if err := a.n.mustLead(); err != nil {
		return nil, err
	}
	all := sift(recs, a.n.cfg.Store.Verify)
	if err := a.n.holdBack(&all); err != nil {
		return nil, err
	}
	start := time.Now()
	var parts []*pending
	var failed error
	for _, part := range pack(all.good) {
		p, err := a.submit(ctx, &pending{recs: all.good[part.from:part.to]})
		if err != nil {
			failed = err
			break
		}
		parts = append(parts, p)
	}
	var results []replay.AppendResult
	for _, p := range parts { // also after a failure: their room is taken
		out, err := a.wait(ctx, p)
		results, failed = append(results, out.results...), cmp.Or(failed, err)
	}
	if failed != nil {
		a.n.metrics.failed.Inc()
		return nil, failed
	}
	a.n.metrics.appended(len(all.good), time.Since(start))
	out := all.merge(results)
	return out, replay.AppendError(func(i int) string { return recs[i].Item.LogID }, out)
}

// holdBack answers logs whose tenant's quota or table takes none now before
// their bytes are written anywhere. The fold decides again: this only spares the
// disks.
func (n *Node) holdBack(s *sifted) error {
	now := time.Now()
	return n.store.View(func(kv replay.Reader) error {
		var good []replay.Record
		var at []int
		quotas, err := replay.HasQuotas(kv)
		if err != nil {
			return err
		}
		for i, r := range s.good {
			busy, err := "", error(nil)
			if quotas {
				busy, err = replay.BusyTenant(kv, r.Item, now)
			}
			if err == nil && busy == "" && r.Item.Table != replay.TableTrain && r.Item.Table != replay.TableEval {
				busy, err = replay.BusyTable(kv, r.Item)
			}
			if err != nil {
				return err
			}
			if busy != "" {
				s.out[s.at[i]].Busy = busy
				continue
			}
			good, at = append(good, r), append(at, s.at[i])
		}
		s.good, s.at = good, at
		return nil
	})
}

// submit takes room for records and puts them on their way.
func (a *appender) submit(ctx context.Context, p *pending) (*pending, error) {
	p.done = make(chan appended, 1)
	for i := range p.recs {
		p.size += int64(p.recs[i].Stored())
	}
	room := min(p.size, inFlight)
	if err := a.room.Acquire(ctx, room); err != nil {
		return nil, a.late(ctx, p)
	}
	p.release = func() { a.room.Release(room) }
	select {
	case a.in <- p:
		return p, nil
	case <-ctx.Done():
		p.release()
		return nil, a.late(ctx, p)
	case <-a.n.ctx.Done():
		p.release()
		return nil, fmt.Errorf("cluster: node %s is closing: %w", a.n.id, replay.ErrUnavailable)
	}
}

func (a *appender) late(ctx context.Context, p *pending) error {
	return fmt.Errorf("cluster: append of %d logs from %q on: not done by node %s in time: %w",
		len(p.recs), p.recs[0].Item.LogID, a.n.id, ctx.Err())
}

// wait returns what became of submitted records. The pipeline answers within
// twice AppendTimeout whatever happens, and they keep their room until then.
func (a *appender) wait(ctx context.Context, p *pending) (appended, error) {
	select {
	case out := <-p.done:
		p.release()
		return out, out.err
	case <-ctx.Done():
		a.n.tasks.run(func() {
			select {
			case <-p.done:
			case <-a.n.ctx.Done():
			}
			p.release()
		})
		return appended{}, a.late(ctx, p)
	case <-a.n.ctx.Done():
		return appended{}, fmt.Errorf("cluster: node %s is closing; the outcome is unknown: %w", a.n.id, replay.ErrUnavailable)
	}
}

// part is a range of records that travels as one.
type part struct{ from, to int }

// pack cuts records into parts of about a chunk.
func pack(recs []replay.Record) []part {
	var out []part
	size := 0
	for i := range recs {
		if len(out) == 0 || size+recs[i].Stored() > chunkBytes || i-out[len(out)-1].from >= maxItems {
			out, size = append(out, part{i, i}), 0
		}
		out[len(out)-1].to = i + 1
		size += recs[i].Stored()
	}
	return out
}

// sifted are the records of one append that replicas can take, and what is
// already said of the others: a bad record costs no other.
type sifted struct {
	good []replay.Record
	at   []int // position of each in the append
	out  []replay.AppendResult
}

// sift checks records and packs them; verify (nil = none) says whether the bytes
// are what the item says.
func sift(recs []replay.Record, verify func(replay.Item, []byte) error) sifted {
	s := sifted{out: make([]replay.AppendResult, len(recs))}
	for i := range recs {
		if err := checkRecord(&recs[i], verify); err != nil {
			s.out[i].Rejected = err.Error()
			continue
		}
		s.good, s.at = append(s.good, recs[i].Pack()), append(s.at, i)
	}
	return s
}

// merge puts the results of the good records in their places.
func (s sifted) merge(results []replay.AppendResult) []replay.AppendResult {
	for i, r := range results {
		s.out[s.at[i]] = r
	}
	return s.out
}

// checkRecord refuses what no replica could take, and what is not what its item
// says.
func checkRecord(r *replay.Record, verify func(replay.Item, []byte) error) error {
	if err := r.Item.Validate(); err != nil {
		return err
	}
	if n := r.Item.Size; n == 0 || n > maxRecord || r.Stored() > maxRecord {
		return fmt.Errorf("%w: log %q of %d bytes: want 1 to %d", replay.ErrInvalid, r.Item.LogID, max(int(n), r.Stored()), maxRecord)
	}
	raw, err := r.Unpack()
	if err != nil {
		return err
	}
	if int(r.Item.Size) != len(raw.Bytes) {
		return fmt.Errorf("%w: log %q: size = %d, but it has %d bytes", replay.ErrInvalid, r.Item.LogID, r.Item.Size, len(raw.Bytes))
	}
	if verify == nil {
		return nil
	}
	if err := verify(r.Item, raw.Bytes); err != nil {
		return fmt.Errorf("%w: log %q: %w", replay.ErrInvalid, r.Item.LogID, err)
	}
	return nil
}

// gather packs callers' records into chunks.
func (a *appender) gather() {
	for {
		var first *pending
		select {
		case first = <-a.in:
		case <-a.n.ctx.Done():
			a.drain()
			return
		}
		batch, size, items := []*pending{first}, first.size, len(first.recs)
		for started := false; !started; {
			in := a.in
			if size >= chunkBytes || items >= maxItems {
				in = nil
			}
			select { // what is queued goes along, even when there is a slot
			case p := <-in:
				batch, size, items = append(batch, p), size+p.size, items+len(p.recs)
				continue
			default:
			}
			select {
			case p := <-in:
				batch, size, items = append(batch, p), size+p.size, items+len(p.recs)
			case a.slots <- struct{}{}:
				a.start(batch)
				started = true
			case <-a.n.ctx.Done():
				for _, p := range batch {
					p.done <- appended{err: fmt.Errorf("cluster: node %s is closing: %w", a.n.id, replay.ErrUnavailable)}
				}
				started = true
			}
		}
	}
}

// drain answers whoever is still queued.
func (a *appender) drain() {
	for {
		select {
		case p := <-a.in:
			p.done <- appended{err: fmt.Errorf("cluster: node %s is closing: %w", a.n.id, replay.ErrUnavailable)}
		default:
			return
		}
	}
}

// start sends a chunk to every disk. The caller holds a slot for it.
func (a *appender) start(batch []*pending) {
	term := a.n.ready.Load()
	if term == 0 {
		<-a.slots
		for _, p := range batch {
			p.done <- appended{err: a.n.notLeader()}
		}
		return
	}
	a.n.members.RLock() // until the chunk is done: see promote
	voters, others := a.n.servers()
	a.nextID++
	c := newChunk(a.nextID, term, batch, voters, a.n.cfg.AppendTimeout)
	c.finish = func(err error) {
		<-a.slots
		if err != nil {
			a.n.members.RUnlock()
			c.answer(err)
			return
		}
		select {
		case a.commit <- c:
		case <-a.n.ctx.Done():
			a.n.members.RUnlock()
			c.answer(fmt.Errorf("cluster: node %s is closing: %w", a.n.id, replay.ErrUnavailable))
		}
	}
	for _, id := range append(voters, others...) {
		if id != a.n.id {
			a.repl.send(id, c)
		}
	}
	if !a.own.push(c) {
		c.nack(a.n.id, errBehind)
	}
}

// writeOwn writes chunks to this node's own disk, all that are queued with one
// flush.
func (a *appender) writeOwn() {
	for {
		select {
		case <-a.n.ctx.Done():
			return
		case c := <-a.own.ch:
			for _, g := range a.own.gather(c) {
				err := a.n.store.PutChunk(a.n.ctx, g[0].term, chunkRecords(g))
				for _, c := range g {
					c.report(a.n.id, err)
				}
				a.own.done(g)
			}
		}
	}
}

// commitAll commits the items of chunks that a majority holds, many chunks in
// one raft entry, two entries at a time: one on its way to the logs, one in the
// fold.
func (a *appender) commitAll() {
	slots := make(chan struct{}, entriesAtOnce)
	var entries sync.WaitGroup
	defer entries.Wait()
	closing := func(cs ...*chunk) {
		for _, c := range cs {
			a.finish(c, fmt.Errorf("cluster: node %s is closing: %w", a.n.id, replay.ErrUnavailable))
		}
	}
	for {
		var batch []*chunk
		items := 0
		add := func(c *chunk) { batch, items = append(batch, c), items+len(c.items) }
		select {
		case c := <-a.commit:
			add(c)
		case <-a.n.ctx.Done():
			for {
				select {
				case c := <-a.commit:
					closing(c)
				default:
					return
				}
			}
		}
		for started := false; !started; {
			in := a.commit
			if items >= maxItems {
				in = nil
			}
			select {
			case c := <-in:
				add(c)
				continue
			default:
			}
			select {
			case c := <-in:
				add(c)
			case slots <- struct{}{}:
				entries.Go(func() {
					defer func() { <-slots }()
					a.commitBatch(batch)
				})
				started = true
			case <-a.n.ctx.Done():
				closing(batch...)
				started = true
			}
		}
	}
}

func (a *appender) commitBatch(batch []*chunk) {
	var items []replay.Item
	for _, c := range batch {
		items = append(items, c.items...)
	}
	ctx, cancel := context.WithTimeout(a.n.ctx, a.n.cfg.AppendTimeout)
	defer cancel()
	var res replay.Result
	var err error
	if len(items) > 0 {
		res, err = a.n.propose(ctx, replay.AppendItemsCmd{Now: a.n.now(), Items: items})
	}
	if err == nil && len(res.Append) != len(items) {
		err = fmt.Errorf("cluster: fold answered %d of %d items", len(res.Append), len(items))
	}
	for _, c := range batch {
		if err == nil {
			c.results, res.Append = res.Append[:len(c.items)], res.Append[len(c.items):]
		}
		for _, p := range c.batch {
			if p.cmd != nil && err == nil {
				p.answer, p.refused = a.n.propose(ctx, p.cmd)
			}
		}
		a.finish(c, err)
	}
}

func (a *appender) finish(c *chunk, err error) {
	a.n.members.RUnlock()
	c.answer(err)
}
