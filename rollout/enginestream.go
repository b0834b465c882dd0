package rollout

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/skein-rl/skein/model"
)

// Delta is what came since the last one.
type Delta struct {
	IDs      []int32
	Logprobs []float32
	Raw      []float32              // when asked
	Top      [][]model.TokenLogprob // when asked
	// Text is the new text, when the engine has a text side. It comes later than
	// its ids while it may still become part of a stop string or lacks the rest
	// of a character.
	Text string
}

// Stream delivers a completion as it is made. The engine never waits for a
// reader: what a slow one has not taken yet comes as one larger Delta, and
// MaxNew bounds it. One goroutine reads.
type Stream struct {
	cancel context.CancelFunc
	wake   chan struct{}

	mu    sync.Mutex
	next  Delta
	ended bool
	out   Generation
	err   error
}

// Stream starts a completion and returns at once. Close it. Errors as of
// Generate, those of a running request from Next.
func (e *LocalEngine) Stream(ctx context.Context, req GenerateRequest) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{cancel: cancel, wake: make(chan struct{}, 1)}
	if _, err := e.submit(ctx, req, s); err != nil {
		cancel()
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		s.end(nil, fmt.Errorf("engine: %w", context.Cause(ctx)))
		e.nudge()
	})
	return s, nil
}

// Next waits for the next part; io.EOF after the last one.
func (s *Stream) Next(ctx context.Context) (Delta, error) {
	for {
		s.mu.Lock()
		d, ended, err := s.next, s.ended, s.err
		s.next = Delta{}
		s.mu.Unlock()
		switch {
		case len(d.IDs) > 0 || d.Text != "":
			return d, nil
		case err != nil:
			return Delta{}, err
		case ended:
			return Delta{}, io.EOF
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Delta{}, fmt.Errorf("engine: %w", context.Cause(ctx))
		}
	}
}

// Generation is the whole completion, once Next returned io.EOF.
func (s *Stream) Generation() Generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

// Close cancels the completion unless it has ended.
func (s *Stream) Close() { s.cancel() }

// add is the engine's: the request emitted its tokens from index on.
func (s *Stream) add(r *request, from int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	o := &r.out
	s.next.IDs = append(s.next.IDs, o.IDs[from:]...)
	s.next.Logprobs = append(s.next.Logprobs, o.Logprobs[from:]...)
	if r.req.Raw {
		s.next.Raw = append(s.next.Raw, o.Raw[from:]...)
	}
	if r.req.Top > 0 {
		s.next.Top = append(s.next.Top, o.Top[from:]...)
	}
	s.next.Text += text
	s.signal()
}

// end is the engine's; of several calls the first counts.
func (s *Stream) end(r *request, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	if err == nil {
		s.out = r.out
	}
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
