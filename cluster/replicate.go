package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// replicator sends chunks to followers, one sender each. A follower that is
// down or slow costs the others nothing: its chunks are given up and it pulls
// them later.
type replicator struct {
	n  *Node
	mu sync.Mutex
	m  map[string]*sender
}

func newReplicator(n *Node) *replicator { return &replicator{n: n, m: make(map[string]*sender)} }

// send queues a chunk for a node; what becomes of it is reported to the chunk.
func (r *replicator) send(id string, c *chunk) {
	r.mu.Lock()
	s := r.m[id]
	if s == nil {
		s = &sender{n: r.n, id: id, queue: newChunkQueue()}
		r.m[id] = s
		r.n.tasks.run(s.run)
	}
	r.mu.Unlock()
	if !s.queue.push(c) {
		c.nack(id, errBehind)
	}
}

// sender owns the stream to one follower.
type sender struct {
	n     *Node
	id    string
	queue *chunkQueue

	cur     *followerStream
	retryAt time.Time
	lastErr error
	fails   int
}

func (s *sender) run() {
	defer func() {
		if s.cur != nil {
			s.cur.fail(context.Canceled)
			<-s.cur.gone
		}
	}()
	for {
		select {
		case <-s.n.ctx.Done():
			return
		case c := <-s.queue.ch:
			if err := s.sendChunk(c); err != nil {
				c.nack(s.id, err)
				s.queue.done([]*chunk{c})
			}
		}
	}
}

func (s *sender) sendChunk(c *chunk) error {
	if s.cur != nil && s.cur.dead() {
		<-s.cur.gone
		s.cur = nil
	}
	if s.cur == nil {
		if time.Now().Before(s.retryAt) {
			return s.lastErr
		}
		if err := s.open(); err != nil {
			s.fails++
			s.lastErr = err
			s.retryAt = time.Now().Add(min(100*time.Millisecond<<min(s.fails, 5), 2*time.Second))
			return err
		}
		s.fails = 0
	}
	s.cur.send(c)
	return nil
}

func (s *sender) open() error {
	p, err := s.n.peers.get(s.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(s.n.ctx)
	// The first answer may take as long as any other.
	t := time.AfterFunc(s.n.cfg.AppendTimeout, func() { cancel(errSilent) })
	st, err := p.Replicate(ctx)
	if !t.Stop() || err != nil {
		cancel(nil)
		if err == nil {
			err = errSilent
		}
		return p.fail(err)
	}
	s.cur = &followerStream{
		id: s.id, name: p.String(), st: st, cancel: cancel, queue: s.queue, limit: s.n.cfg.AppendTimeout,
		inFlight: make(map[uint64]*chunk), gone: make(chan struct{}),
	}
	go s.cur.receive() // ends with ctx; run waits for gone
	return nil
}

// followerStream is one Replicate stream with its unanswered chunks.
type followerStream struct {
	id, name string
	st       pb.Peer_ReplicateClient
	cancel   context.CancelCauseFunc
	queue    *chunkQueue
	limit    time.Duration
	gone     chan struct{} // closed when receive has ended

	mu       sync.Mutex
	inFlight map[uint64]*chunk
	err      error
	silence  *time.Timer // runs while something is unanswered
}

func (f *followerStream) dead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err != nil
}

// send blocks while the follower's window is full; the silence timer ends it.
func (f *followerStream) send(c *chunk) {
	f.mu.Lock()
	if f.err != nil {
		err := f.err
		f.mu.Unlock()
		c.nack(f.id, err)
		f.queue.done([]*chunk{c})
		return
	}
	f.inFlight[c.id] = c
	if f.silence == nil {
		f.silence = time.AfterFunc(f.limit, func() {
			f.fail(fmt.Errorf("cluster: node %s: no answer for %s: %w", f.name, f.limit, replay.ErrUnavailable))
		})
	}
	f.mu.Unlock()
	err := f.st.Send(&pb.ReplicateRequest{Id: c.id, Term: c.term, Records: mapSlice(c.recs, recordTo)})
	if err != nil && !errors.Is(err, io.EOF) { // on EOF receive has the reason
		f.fail(fromStatus(err, f.name))
	}
}

// fail ends the stream and gives up everything unanswered.
func (f *followerStream) fail(err error) {
	f.mu.Lock()
	if f.err != nil {
		f.mu.Unlock()
		return
	}
	f.err = err
	if f.silence != nil {
		f.silence.Stop()
	}
	left := f.inFlight
	f.inFlight = nil
	f.mu.Unlock()
	f.cancel(err)
	for _, c := range left {
		c.nack(f.id, err)
		f.queue.done([]*chunk{c})
	}
}

func (f *followerStream) receive() {
	defer close(f.gone)
	for {
		resp, err := f.st.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("cluster: node %s ended the stream: %w", f.name, replay.ErrUnavailable)
			} else {
				err = fromStatus(err, f.name)
			}
			f.fail(err)
			return
		}
		f.mu.Lock()
		c := f.inFlight[resp.GetId()]
		delete(f.inFlight, resp.GetId())
		if f.silence != nil {
			f.silence.Stop()
			if f.silence = nil; len(f.inFlight) > 0 && f.err == nil {
				f.silence = time.AfterFunc(f.limit, func() {
					f.fail(fmt.Errorf("cluster: node %s: no answer for %s: %w", f.name, f.limit, replay.ErrUnavailable))
				})
			}
		}
		f.mu.Unlock()
		if c == nil {
			continue
		}
		if e := resp.GetError(); e != nil {
			c.nack(f.id, fromWire(e))
		} else {
			c.report(f.id, nil)
		}
		f.queue.done([]*chunk{c})
	}
}

// Replicate is the follower's side: it writes what arrives, all that waits with
// one flush, and answers each chunk when it is on disk.
func (s *peerServer) Replicate(st pb.Peer_ReplicateServer) error {
	q := make(chan *pb.ReplicateRequest, 16)
	done := make(chan error, 1)
	go func() { done <- s.n.writeReplicated(st, q) }()
	var err error
	for err == nil {
		var req *pb.ReplicateRequest
		if req, err = st.Recv(); err != nil {
			break
		}
		select {
		case q <- req:
		case werr := <-done:
			return toStatus(werr)
		}
	}
	close(q)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return toStatus(errors.Join(err, <-done))
}

func (n *Node) writeReplicated(st pb.Peer_ReplicateServer, q <-chan *pb.ReplicateRequest) error {
	for first := range q {
		batch, size := []*pb.ReplicateRequest{first}, sizeOf(first)
	more:
		for size < 4*chunkBytes {
			select {
			case r, ok := <-q:
				if !ok {
					break more
				}
				if r.GetTerm() != first.GetTerm() {
					if err := n.writeBatch(st, batch); err != nil {
						return err
					}
					batch, size, first = nil, 0, r
				}
				batch, size = append(batch, r), size+sizeOf(r)
			default:
				break more
			}
		}
		if err := n.writeBatch(st, batch); err != nil {
			return err
		}
	}
	return nil
}

func sizeOf(r *pb.ReplicateRequest) (n int) {
	for _, x := range r.GetRecords() {
		n += len(x.GetData()) + len(x.GetZstd())
	}
	return n
}

func (n *Node) writeBatch(st pb.Peer_ReplicateServer, batch []*pb.ReplicateRequest) error {
	term := batch[0].GetTerm()
	var err error
	if now := n.raft.CurrentTerm(); term < now {
		err = fmt.Errorf("cluster: node %s is in term %d, chunk of term %d refused: %w", n.id, now, term, replay.ErrStale)
	} else {
		var recs []replay.Record
		for _, r := range batch {
			for _, x := range r.GetRecords() {
				recs = append(recs, recordFrom(x))
			}
		}
		err = n.store.PutChunk(st.Context(), term, recs)
	}
	for _, r := range batch {
		resp := &pb.ReplicateResponse{Id: r.GetId()}
		if err != nil {
			resp.Error, _ = toWire(err)
		}
		if serr := st.Send(resp); serr != nil {
			return serr
		}
	}
	return nil
}
