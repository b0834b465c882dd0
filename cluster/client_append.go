package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// Append implements replay.Store. Records go in requests of about a megabyte
// over one stream; those that were answered are not sent again when the leader
// changes in between. LogIDs make the rest idempotent.
func (c *Client) Append(ctx context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	all := sift(recs, nil)
	name := func(i int) string { return recs[i].Item.LogID }
	if len(all.good) == 0 {
		return all.out, replay.AppendError(name, all.out)
	}
	out, err := c.appendGood(ctx, all.good)
	if err != nil {
		return nil, err
	}
	all.merge(out)
	return all.out, replay.AppendError(name, all.out)
}

// appendGood appends records that have passed sift.
func (c *Client) appendGood(ctx context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	out := make([]replay.AppendResult, len(recs))
	left := pack(recs)
	err := c.call(ctx, fmt.Sprintf("append %d logs", len(recs)), appendWait, func(ctx context.Context, l *link, _ bool) error {
		st, err := c.stream(l)
		if err != nil {
			return err
		}
		type answer struct {
			part part
			res  []replay.AppendResult
			err  error
		}
		answers := make(chan answer, len(left))
		for _, p := range left {
			if !c.tasks.run(func() {
				res, err := st.do(ctx, recs[p.from:p.to])
				answers <- answer{p, res, err}
			}) {
				return fmt.Errorf("cluster: client closed: %w", replay.ErrInvalid)
			}
		}
		var again []part
		var errs []error
		for range left {
			a := <-answers
			switch {
			case len(a.res) == a.part.to-a.part.from:
				copy(out[a.part.from:], a.res)
			default:
				again = append(again, a.part)
				errs = append(errs, l.fail(a.err))
			}
		}
		left = again
		return worst(errs)
	})
	return out, err
}

// worst is the error that decides what happens next: one that ends the call
// beats one to be tried again.
func worst(errs []error) error {
	for _, err := range errs {
		if !retryable(err) {
			return err
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// appendWait is how long a leader may take over one request beside an answer.
const appendWait = 15 * time.Second

// stream returns the append stream to the leader, opened anew when it broke or
// the leader changed.
func (c *Client) stream(l *link) (*appendStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.append != nil && c.append.link == l && !c.append.dead() {
		return c.append, nil
	}
	if c.append != nil {
		c.append.fail(fmt.Errorf("cluster: leader changed: %w", replay.ErrUnavailable))
		c.append = nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	st, err := pb.NewReplayClient(l).Append(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &appendStream{
		link: l, st: st, cancel: cancel, waiting: make(map[uint64]chan *pb.AppendResponse),
		opened: make(chan struct{}), gone: make(chan struct{}),
	}
	if !c.tasks.run(s.receive) {
		cancel()
		return nil, fmt.Errorf("cluster: client closed: %w", replay.ErrInvalid)
	}
	c.append = s
	return s, nil
}

// appendStream is one Append stream, shared by all callers of a client.
type appendStream struct {
	link   *link
	st     pb.Replay_AppendClient
	cancel context.CancelFunc

	opened chan struct{} // closed when the leader named its window
	window *semaphore.Weighted
	size   int64
	gone   chan struct{} // closed when the stream failed; err says why

	send sync.Mutex

	mu      sync.Mutex
	err     error
	nextID  uint64
	waiting map[uint64]chan *pb.AppendResponse
}

func (s *appendStream) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

func (s *appendStream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	s.cancel()
	close(s.gone)
}

func (s *appendStream) receive() {
	for {
		a, err := s.st.Recv()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("cluster: node %s ended the stream: %w", s.link.addr, replay.ErrUnavailable)
		}
		if err != nil {
			s.fail(s.link.fail(err))
			return
		}
		if s.window == nil {
			s.size = max(a.GetWindow(), 1)
			s.window = semaphore.NewWeighted(s.size)
			close(s.opened)
			continue
		}
		s.mu.Lock()
		ch := s.waiting[a.GetId()]
		delete(s.waiting, a.GetId())
		s.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
}

// do sends records and waits for their answer, for ctx, or for the stream to
// fail. An answer that does not come in time fails the stream: the node may
// hang, and the next try should not wait behind it.
func (s *appendStream) do(ctx context.Context, recs []replay.Record) (res []replay.AppendResult, err error) {
	late := func() error {
		err := fmt.Errorf("cluster: node %s did not answer an append in time: %w", s.link.addr, ctx.Err())
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.fail(err)
		}
		return err
	}
	select {
	case <-s.opened:
	case <-s.gone:
		return nil, s.err
	case <-ctx.Done():
		return nil, late()
	}
	var size int64 = 1
	for _, r := range recs {
		size += int64(r.Stored())
	}
	size = min(size, s.size)
	if err := s.window.Acquire(ctx, size); err != nil {
		return nil, late()
	}
	defer s.window.Release(size)
	ch := make(chan *pb.AppendResponse, 1)
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	s.nextID++
	id := s.nextID
	s.waiting[id] = ch
	s.mu.Unlock()
	req := &pb.AppendRequest{Id: id, Records: mapSlice(recs, recordTo)}
	if d, ok := ctx.Deadline(); ok {
		req.Timeout = int64(time.Until(d))
	}
	s.send.Lock()
	err = s.st.Send(req)
	s.send.Unlock()
	if err != nil && !errors.Is(err, io.EOF) { // on EOF receive has the reason
		s.fail(s.link.fail(err))
	}
	select {
	case a := <-ch:
		if e := a.GetError(); e != nil {
			err = fromWire(e)
		} else {
			err = nil
		}
		return mapSlice(a.GetResults(), resultFrom), err
	case <-s.gone:
		return nil, s.err
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waiting, id)
		s.mu.Unlock()
		return nil, late()
	}
}
