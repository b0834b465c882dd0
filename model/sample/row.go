package sample

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/skein-rl/skein/model"
)

var (
	// ErrNoToken marks a draw that a constraint, a bias of -Inf or both left
	// without a token.
	ErrNoToken = errors.New("sample: no token may come next")
	// ErrConstraint marks a constraint that panicked or refused the token drawn.
	ErrConstraint = errors.New("sample: constraint failed")
)

// workspace is what one draw that edits its logits needs.
type workspace struct {
	logits []float32
	marks  []int32 // by token: 0 unseen, else 1 + times in the output; zero between draws
	mask   []uint64
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// DrawRow draws a row's next token from its logits [vocab] and appends it to
// out: the id, the logprob and, when asked, the raw logprob and the top list.
// History is the sequence up to the newest token, the row's Last and what this
// call drew since included; it is read only when the row has penalties. Position
// is the index in the sequence of the token to be drawn. The row's constraint
// has accepted the token when DrawRow returns.
//
// The row must have passed CheckRow. Errors: ErrNonFinite, ErrNoToken, or
// ErrConstraint (a panic inside the constraint becomes one); out is then as
// before. They concern this row alone. Logits are not changed. Without
// penalties, bias, constraint, Raw and Top it is Draw, bit for bit.
func DrawRow(logits []float32, row *model.DecodeRow, history []int32, position int, out *model.DecodeOut) (int32, error) {
	from := logits
	if edits(row) {
		w := workspaces.Get().(*workspace)
		defer workspaces.Put(w)
		var err error
		if from, err = w.edit(logits, row, history); err != nil {
			return 0, err
		}
	}
	id, logprob, err := Draw(from, row.Sampling, position)
	if err != nil {
		return 0, err
	}
	if row.Constraint != nil {
		if err := guard("accept", func() error { return row.Constraint.Accept(id) }); err != nil {
			return 0, err
		}
	}
	out.IDs, out.Logprobs = append(out.IDs, id), append(out.Logprobs, logprob)
	if row.Raw || row.Top > 0 {
		norm := logSumExp(logits)
		if row.Raw {
			out.Raw = append(out.Raw, rawLogprob(logits[id], norm))
		}
		if row.Top > 0 {
			out.Top = append(out.Top, top(logits, norm, row.Top))
		}
	}
	return id, nil
}

// edit returns a copy of the logits after penalties, bias and constraint.
func (w *workspace) edit(logits []float32, row *model.DecodeRow, history []int32) ([]float32, error) {
	if err := checkFinite(logits); err != nil {
		return nil, err
	}
	w.logits = append(w.logits[:0], logits...)
	if NeedsHistory(row.Sampling) {
		w.penalise(row.Sampling, history, row.Prompt)
	}
	for _, b := range row.Bias {
		w.logits[b.ID] += b.Bias
	}
	if row.Constraint != nil {
		if err := w.constrain(row.Constraint); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(w.logits, func(v float32) bool { return !(v < -math.MaxFloat32) }) {
		return nil, fmt.Errorf("%w: constraint and bias leave none of %d", ErrNoToken, len(logits))
	}
	return w.logits, nil
}

// penalise applies model.Sampling's penalties to w.logits.
func (w *workspace) penalise(s model.Sampling, history []int32, prompt int) {
	if len(w.marks) < len(w.logits) {
		w.marks = make([]int32, len(w.logits))
	}
	for i, id := range history {
		if w.marks[id] == 0 {
			w.marks[id] = 1
		}
		if i >= prompt {
			w.marks[id]++
		}
	}
	repetition := s.RepetitionPenalty
	if repetition == 0 {
		repetition = 1
	}
	for _, id := range history {
		mark := w.marks[id]
		if mark == 0 {
			continue // a repetition
		}
		w.marks[id] = 0
		z := float64(w.logits[id])
		if z > 0 {
			z /= repetition
		} else {
			z *= repetition
		}
		if count := float64(mark - 1); count > 0 {
			z -= s.FrequencyPenalty*count + s.PresencePenalty
		}
		w.logits[id] = float32(z)
	}
}

// constrain forbids what the constraint does not allow.
func (w *workspace) constrain(c model.Constraint) error {
	words := (len(w.logits) + 63) / 64
	w.mask = slices.Grow(w.mask[:0], words)[:words]
	for i := range w.mask {
		w.mask[i] = ^uint64(0)
	}
	if err := guard("allow", func() error { c.Allow(w.mask); return nil }); err != nil {
		return err
	}
	forbidden := float32(math.Inf(-1))
	for i, word := range w.mask {
		if word == ^uint64(0) {
			continue
		}
		for id := i * 64; id < min(i*64+64, len(w.logits)); id++ {
			if word>>(id%64)&1 == 0 {
				w.logits[id] = forbidden
			}
		}
	}
	return nil
}

// guard runs a constraint's method: code of the caller's, which may break
// without taking the other rows of the batch along.
func guard(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s panicked: %v\n%s", ErrConstraint, what, r, debug.Stack())
		}
	}()
	if err := f(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrConstraint, what, err)
	}
	return nil
}
