package learner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/skein-rl/skein/model"
)

// Lender lets a trainer compute for other learners of the run while its own
// learner trains nothing. Safe for concurrent use.
type Lender struct {
	trainers
	hello Hello

	use   sync.Mutex // a trainer is in use
	guest uint64     // the newest guest; earlier ones have lost the trainer
	ended bool
}

// Lend lends the learner's trainers to others of the same identity. backend names
// the kind of arithmetic, such as "go f32": learners of different kinds do not
// help each other, their bits differ.
func (l *Learner) Lend(backend string) *Lender {
	return &Lender{trainers: l.trainers(), hello: l.Hello(backend)}
}

// Hello is what this learner's helpers must agree in; backend as for Lend.
func (l *Learner) Hello(backend string) Hello {
	hello := Hello{Protocol: protocol, Run: l.ident.Run, Base: l.ident.Base, Params: layoutDigest(l.tr.Layout(), l.cfg.Trainer(model.LoRAConfig{}, false)), Backend: backend}
	if l.critic != nil {
		hello.Critic = layoutDigest(l.critic.tr.Layout(), model.TrainerConfig{Value: true})
	}
	return hello
}

// take gives the trainer to its own learner until the returned function is
// called. It waits for what a guest computes now.
func (l *Lender) take() (give func()) {
	if l == nil {
		return func() {}
	}
	l.use.Lock()
	l.guest++
	return l.use.Unlock
}

// Close ends the lending: from its return on, the trainer is not used by guests.
func (l *Lender) Close() {
	l.use.Lock()
	defer l.use.Unlock()
	l.ended = true
}

// session is one guest's state at the lender.
type session struct {
	l       *Lender
	guest   uint64
	vectors [places]paramVector
	set     [places]uint64 // the parameters that the place's trainer has
	last    model.Trainer  // of the last forward; nil without one
}

// errBusy: the trainer is in use, by its own learner or a newer guest.
var errBusy = errors.New("learner: this learner's trainer is in use")

// Serve computes for one guest until the channel or ctx ends. The newest guest
// has the trainer: the learner that trains changes when one is lost.
func (l *Lender) Serve(ctx context.Context, ch Channel) error {
	stop := context.AfterFunc(ctx, func() { _ = ch.Close() })
	defer stop()
	s := &session{l: l}
	for {
		raw, err := ch.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		q, err := decodeMessage(raw)
		if err != nil {
			return err
		}
		a := &message{Op: q.Op}
		failed := s.answer(ctx, q, a)
		if failed != nil {
			a = &message{Op: q.Op, Error: failed.Error()}
		}
		if raw, err = a.encode(); err == nil {
			err = ch.Send(raw)
		}
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
	}
}

func (s *session) answer(ctx context.Context, q, a *message) error {
	if !s.l.use.TryLock() {
		return errBusy
	}
	defer s.l.use.Unlock()
	if s.l.ended {
		return errBusy
	}
	if q.Op == opHello {
		return s.hello(q)
	}
	if s.guest == 0 || s.guest != s.l.guest {
		return errBusy
	}
	if q.Place < 0 || q.Place >= places || s.l.at(q.Place) == nil {
		return fmt.Errorf("%w: place %d", errMessage, q.Place)
	}
	switch q.Op {
	case opParams:
		if len(q.vectors) != 1 || len(q.vectors[0]) != s.l.at(q.Place).Layout().Size() || q.Vector == 0 {
			return fmt.Errorf("%w: parameters of another size", errMessage)
		}
		s.vectors[q.Place] = paramVector{q.Place, q.Vector, q.vectors[0]}
		return nil
	case opScore, opForward:
		return s.compute(ctx, q, a)
	case opGradient:
		return s.gradient(ctx, q, a)
	}
	return fmt.Errorf("%w: unknown operation %q", errMessage, q.Op)
}

func (s *session) hello(q *message) error {
	if q.Hello == nil {
		return fmt.Errorf("%w: a hello without one", errMessage)
	}
	if mine := s.l.hello; *q.Hello != mine {
		return fmt.Errorf("learner: cannot help %+v: this learner is %+v; start it with the run's configuration, on the same kind of device and release", *q.Hello, mine)
	}
	s.l.guest++
	s.guest = s.l.guest
	return nil
}

func (s *session) compute(ctx context.Context, q, a *message) error {
	v := s.vectors[q.Place]
	if q.Vector == 0 && q.Op == opScore {
		v = paramVector{}
	}
	if v.id != q.Vector {
		return fmt.Errorf("%w: unknown parameters %d", errMessage, q.Vector)
	}
	tr := s.l.at(q.Place)
	var sc model.Scores
	var err error
	if q.Op == opScore {
		sc, err = tr.Score(ctx, q.Groups, q.Temperature, v.data)
	} else {
		if q.Vector == 0 {
			return fmt.Errorf("%w: forward without parameters", errMessage)
		}
		if s.set[q.Place] != q.Vector {
			if err := tr.SetParams(v.data); err != nil {
				return err
			}
			s.set[q.Place] = q.Vector
		}
		s.last = tr
		sc, err = tr.Forward(ctx, q.Groups, q.Temperature)
	}
	a.vectors = scoreVectors(sc)
	return err
}

func (s *session) gradient(ctx context.Context, q, a *message) error {
	tr := s.last
	d, err := q.scores()
	switch {
	case err != nil:
		return err
	case tr == nil:
		return fmt.Errorf("%w: a gradient without a forward pass", errMessage)
	}
	s.last = nil
	tr.ZeroGrad()
	if err := tr.Backward(ctx, d); err != nil {
		return err
	}
	a.vectors = [][]float32{tr.Grad()}
	return nil
}
