package learner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/skein-rl/skein/model"
)

// Channel carries messages between two learner processes; cluster.Channel is
// one. Closing it ends a Send or Recv that waits.
type Channel interface {
	Send(msg []byte) error
	Recv() ([]byte, error) // io.EOF after the last one
	Close() error
}

// helper is a learner in another process as the one that trains sees it.
type helper struct {
	id  string
	ch  Channel
	has [places]uint64 // vectors it holds

	mu   sync.Mutex
	gone error
}

// connect introduces this learner. The helper's refusal is an error.
func connect(ctx context.Context, id string, ch Channel, hello Hello) (*helper, error) {
	h := &helper{id: id, ch: ch}
	if _, err := h.call(ctx, &message{Op: opHello, Hello: &hello}); err != nil {
		return nil, err
	}
	return h, nil
}

// lost says that the helper cannot be used any more.
func (h *helper) lost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone != nil
}

// lose ends the helper; every later call fails with the first reason.
func (h *helper) lose(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone == nil {
		h.gone = fmt.Errorf("%w: %s: %w", errHelperLost, h.id, err)
		_ = h.ch.Close()
	}
	return h.gone
}

func (h *helper) call(ctx context.Context, q *message) (*message, error) {
	if h.lost() {
		return nil, h.lose(nil)
	}
	stop := context.AfterFunc(ctx, func() { _ = h.lose(context.Cause(ctx)) })
	defer stop()
	raw, err := q.encode()
	if err == nil {
		err = h.ch.Send(raw)
	}
	if err == nil {
		raw, err = h.ch.Recv()
	}
	if err != nil {
		return nil, h.lose(err)
	}
	a, err := decodeMessage(raw)
	switch {
	case err != nil:
	case a.Op != q.Op:
		err = fmt.Errorf("%w: answer %q to %q", errMessage, a.Op, q.Op)
	case a.Error != "":
		err = errors.New(a.Error)
	}
	if err != nil {
		return nil, h.lose(err)
	}
	return a, nil
}

// give makes the helper hold a vector, instead of the one at its place.
func (h *helper) give(ctx context.Context, v *paramVector) error {
	if v.data == nil || h.has[v.place] == v.id {
		return nil
	}
	if _, err := h.call(ctx, &message{Op: opParams, Place: v.place, Vector: v.id, vectors: [][]float32{v.data}}); err != nil {
		return err
	}
	h.has[v.place] = v.id
	return nil
}

func (h *helper) scores(ctx context.Context, op string, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error) {
	if err := h.give(ctx, v); err != nil {
		return model.Scores{}, err
	}
	q := &message{Op: op, Place: v.place, Vector: v.id, Groups: groups, Temperature: temperature}
	if v.data == nil {
		q.Vector = 0
	}
	a, err := h.call(ctx, q)
	if err != nil {
		return model.Scores{}, err
	}
	sc, err := a.scores()
	if err != nil {
		return model.Scores{}, h.lose(err)
	}
	return sc, nil
}

func (h *helper) score(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error) {
	return h.scores(ctx, opScore, groups, temperature, v)
}

func (h *helper) forward(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error) {
	return h.scores(ctx, opForward, groups, temperature, v)
}

func (h *helper) gradient(ctx context.Context, d model.Scores) ([]float32, error) {
	a, err := h.call(ctx, &message{Op: opGradient, vectors: scoreVectors(d)})
	if err != nil {
		return nil, err
	}
	if len(a.vectors) != 1 {
		return nil, h.lose(fmt.Errorf("%w: %d vectors of a gradient", errMessage, len(a.vectors)))
	}
	return a.vectors[0], nil
}

// layoutDigest names a parameter vector's tensors, shapes and order, and what the
// trainer gives besides log-probabilities.
func layoutDigest(l model.Layout, t model.TrainerConfig) string {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, t.Value, t.MeanLogProb, t.LogSumSq)
	for _, p := range l {
		_, _ = fmt.Fprintln(h, p.Name, p.Shape, p.Offset) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
