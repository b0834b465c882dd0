package learner

import (
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
)

// Critic is ppo's value function: parameters of its own, with a value head, over
// the policy's base weights.
type Critic struct {
	// Trainer was made with TrainerConfig.Value; the learner's own while it lives.
	Trainer model.Trainer
	// Start are the parameters before the first step, in the trainer's layout
	// (copied): those of a reward model, or Adapter.WithScore's zeros.
	Start []float32
}

// critic is a critic in training.
type critic struct {
	tr     model.Trainer
	decay  []Decay
	params []float32
	opt    AdamW
}

func newCritic(c Config, in Critic) (*critic, error) {
	layout := in.Trainer.Layout()
	if len(layout) == 0 || layout[len(layout)-1].Name != model.ScoreWeight {
		return nil, fmt.Errorf("learner: the critic's trainer has no value head; make it with TrainerConfig.Value")
	}
	if err := checkStart("critic", in.Start, layout.Size()); err != nil {
		return nil, err
	}
	return &critic{tr: in.Trainer, decay: DecayOf(layout, c.WeightDecay), params: slices.Clone(in.Start), opt: NewAdamW(len(in.Start))}, nil
}

// checkStart refuses start parameters of another size or not finite.
func checkStart(whose string, start []float32, size int) error {
	if len(start) != size {
		return fmt.Errorf("learner: %s: %d start parameters for a trainer of %d (another adapter shape or base?)", whose, len(start), size)
	}
	for i, x := range start {
		if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("learner: %s: start parameter %d is %v", whose, i, x)
		}
	}
	return nil
}

// CriticState is a critic's part of a checkpoint.
type CriticState struct {
	OptStep uint64 `json:"optimizer_step"`

	Params []float32 `json:"-"`
	M      []float32 `json:"-"`
	V      []float32 `json:"-"`
}

func (c *critic) state() *CriticState {
	if c == nil {
		return nil
	}
	o := c.opt.clone()
	return &CriticState{OptStep: o.T, Params: slices.Clone(c.params), M: o.M, V: o.V}
}

// fits refuses a checkpoint's critic state that is not this critic's.
func (c *critic) fits(s *CriticState) error {
	switch {
	case (c == nil) != (s == nil):
		return fmt.Errorf("%w: it has a critic: %v, this learner has one: %v; keep the algorithm", ErrCheckpoint, s != nil, c != nil)
	case c != nil && (len(s.Params) != len(c.params) || len(s.M) != len(c.params) || len(s.V) != len(c.params)):
		return fmt.Errorf("%w: its critic has %d parameters, this learner's %d", ErrCheckpoint, len(s.Params), len(c.params))
	}
	return nil
}

func (c *critic) restore(s *CriticState) {
	if c != nil {
		c.params, c.opt = slices.Clone(s.Params), AdamW{M: slices.Clone(s.M), V: slices.Clone(s.V), T: s.OptStep}
	}
}

// CriticParams returns a copy of the critic's parameters; nil without a critic.
func (l *Learner) CriticParams() []float32 {
	if l.critic == nil {
		return nil
	}
	return slices.Clone(l.critic.params)
}

// valuedSeq is a branch as the critic sees it: V is read before every trained
// token, which is after the token it follows, so the prompt's last token is a
// member's first.
func valuedSeq(s sequence) sequence {
	p, n := len(s.prompt)-1, len(s.Tokens)
	return sequence{
		prompt:   s.prompt[:p],
		Sequence: model.Sequence{Tokens: slices.Concat(s.prompt[p:], s.Tokens[:n-1]), Train: make([]bool, n), Value: s.Train},
		trained:  s.trained,
	}
}
