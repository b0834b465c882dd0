package model

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Turns shares one backend among the trainers of several users, such as the runs
// of one process: one base, one pass over it at a time. What waits when the device
// is free is done together where the backend is a [Joiner]; otherwise those whose
// users had least of it so far, in proportion to their weights, come first. To the
// bit, results are those of a backend of one's own.
type Turns struct {
	b      Backend
	joiner Joiner // nil: one trainer at a time
	most   int    // tokens of a joint pass

	mu      sync.Mutex
	queue   []*turn
	busy    bool
	partner map[*turnTrainer]bool // of the last joint pass, not back yet
	until   time.Time             // how long partners are waited for
	clock   float64               // what the user of the last call had, before it
	wake    *time.Timer
}

// JointTokens is how many tokens a joint pass has at most, unless one call has
// more: memory for activations grows with them.
const JointTokens = 1 << 14

// Bounds of how long a pass waits for the partners of the last joint one, whose
// users compute their losses meanwhile: a twentieth of that pass.
const (
	partnerShare = 20
	partnerWait  = 50 * time.Millisecond
)

// turn is one call that waits.
type turn struct {
	t      *turnTrainer
	kind   turnKind
	tokens int
	do     func() error
	done   chan error
}

type turnKind int

const (
	turnForward turnKind = iota
	turnBackward
)

// NewTurns shares a backend, which stays the caller's to close. At most most
// tokens go into one joint pass; 0 is JointTokens.
func NewTurns(b Backend, most int) *Turns {
	if most <= 0 {
		most = JointTokens
	}
	j, _ := b.(Joiner)
	return &Turns{b: b, joiner: j, most: most, partner: map[*turnTrainer]bool{}}
}

// User is the backend as one user has it. Weight, above 0, is its part of the
// device while others want it too.
func (s *Turns) User(weight float64) Backend { return &turnUser{s: s, weight: weight} }

type turnUser struct {
	s      *Turns
	weight float64
	used   float64 // tokens computed, by weight
}

// Name implements Backend.
func (u *turnUser) Name() string { return u.s.b.Name() }

// NewDecoder implements Backend: decoders take no turns.
func (u *turnUser) NewDecoder(c DecoderConfig) (Decoder, error) { return u.s.b.NewDecoder(c) }

// NewTrainer implements Backend.
func (u *turnUser) NewTrainer(c TrainerConfig) (Trainer, error) {
	tr, err := u.s.b.NewTrainer(c)
	if err != nil {
		return nil, err
	}
	return &turnTrainer{Trainer: tr, u: u}, nil
}

// Close implements Backend; the base is the owner's to close.
func (u *turnUser) Close() error { return nil }

// Unwrap is the backend behind u.
func (u *turnUser) Unwrap() Backend { return u.s.b }

// turnTrainer waits for its turn before each pass.
type turnTrainer struct {
	Trainer
	u      *turnUser
	tokens int // of the last Forward
}

// Score implements Trainer.
func (t *turnTrainer) Score(ctx context.Context, groups []PrefixGroup, temperature float64, params []float32) (s Scores, err error) {
	err = t.u.s.run(ctx, &turn{t: t, tokens: groupTokens(groups), do: func() (err error) {
		s, err = t.Trainer.Score(ctx, groups, temperature, params)
		return err
	}})
	return s, err
}

// Forward implements Trainer.
func (t *turnTrainer) Forward(ctx context.Context, groups []PrefixGroup, temperature float64) (s Scores, err error) {
	t.tokens = groupTokens(groups)
	err = t.u.s.run(ctx, &turn{t: t, tokens: t.tokens, do: func() (err error) {
		s, err = t.Trainer.Forward(ctx, groups, temperature)
		return err
	}})
	return s, err
}

// Backward implements Trainer.
func (t *turnTrainer) Backward(ctx context.Context, d Scores) error {
	return t.u.s.run(ctx, &turn{t: t, kind: turnBackward, tokens: t.tokens, do: func() error { return t.Trainer.Backward(ctx, d) }})
}

// Close implements Trainer.
func (t *turnTrainer) Close() error {
	t.u.s.mu.Lock()
	delete(t.u.s.partner, t)
	t.u.s.mu.Unlock()
	t.u.s.next()
	return t.Trainer.Close()
}

func groupTokens(groups []PrefixGroup) (n int) {
	for _, g := range groups {
		n += len(g.Prompt)
		for _, m := range g.Members {
			n += len(m.Tokens)
		}
	}
	return n
}

// run waits for the call's turn and does it. A call whose ctx ends first is not
// made.
func (s *Turns) run(ctx context.Context, c *turn) error {
	c.done = make(chan error, 1)
	s.mu.Lock()
	delete(s.partner, c.t)
	s.arrive(c.t.u)
	s.queue = append(s.queue, c)
	s.mu.Unlock()
	s.next()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, q := range s.queue {
		if q == c {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			s.mu.Unlock()
			return fmt.Errorf("model: waiting for the base model's turn: %w", context.Cause(ctx))
		}
	}
	s.mu.Unlock()
	return <-c.done // under way: it ends by ctx itself
}

// next begins a pass when the device is free.
func (s *Turns) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || len(s.queue) == 0 {
		return
	}
	if wait := time.Until(s.until); len(s.partner) > 0 && wait > 0 {
		if s.wake == nil {
			s.wake = time.AfterFunc(wait, func() {
				s.mu.Lock()
				s.wake = nil
				clear(s.partner)
				s.mu.Unlock()
				s.next()
			})
		}
		return
	}
	if s.wake != nil {
		s.wake.Stop()
		s.wake = nil
	}
	clear(s.partner)
	pass := s.choose()
	s.busy = true
	go s.pass(pass)
}

// choose takes calls out of the queue: that of the user who had least, and those
// of other trainers and of its kind that fit beside it, in the same order.
func (s *Turns) choose() []*turn {
	var out []*turn
	tokens := 0
	for {
		best := -1
		for i, c := range s.queue {
			if len(out) > 0 && (s.joiner == nil || c.kind != out[0].kind || tokens+c.tokens > s.most) {
				continue
			}
			if best < 0 || c.t.u.used < s.queue[best].t.u.used {
				best = i
			}
		}
		if best < 0 {
			break
		}
		c := s.queue[best]
		s.queue = append(s.queue[:best], s.queue[best+1:]...)
		s.charge(c)
		tokens += c.tokens
		out = append(out, c)
	}
	return out
}

// charge counts a call.
func (s *Turns) charge(c *turn) {
	s.clock = c.t.u.used
	c.t.u.used += float64(c.tokens+1) / c.t.u.weight
}

// arrive lifts a user who comes back after a rest to about where the others
// stand: rest is not saved up. (Start-time fair queueing, Goyal et al. 1996, with
// one pass of grace for who computes something between passes.)
func (s *Turns) arrive(u *turnUser) { u.used = max(u.used, s.clock-float64(s.most)/u.weight) }

// pass does calls together.
func (s *Turns) pass(calls []*turn) {
	began := time.Now()
	errs := make([]error, len(calls))
	if len(calls) == 1 {
		errs[0] = calls[0].do()
	} else {
		joint := make([]JointCall, len(calls))
		for i, c := range calls {
			joint[i] = JointCall{Trainer: c.t.Trainer, Do: c.do}
		}
		errs = s.joiner.Together(joint)
	}
	s.mu.Lock()
	s.busy = false
	if len(calls) > 1 {
		for i, c := range calls {
			if errs[i] == nil {
				s.partner[c.t] = true
			}
		}
		s.until = time.Now().Add(min(time.Since(began)/partnerShare, partnerWait))
	}
	s.mu.Unlock()
	for i, c := range calls {
		c.done <- errs[i]
	}
	s.next()
}
