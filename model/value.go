package model

import (
	"errors"
	"fmt"
)

// ScoreWeight is the value head's name in a trainer's layout.
const ScoreWeight = "score.weight"

// Layout is the order of the parameters that a trainer of this configuration
// differentiates: those of LoRALayout or FullLayout, then the value head.
func (t TrainerConfig) Layout(c Config) (Layout, error) {
	layout := FullLayout(c)
	if !t.Full {
		var err error
		if layout, err = LoRALayout(c, t.LoRA); err != nil {
			return nil, err
		}
	}
	if t.Value {
		layout = append(layout, Param{Name: ScoreWeight, Shape: []int{1, c.HiddenSize}, Offset: layout.Size()})
	}
	return layout, nil
}

// CheckMarks refuses a group whose marks or dropout a trainer of this configuration
// can't serve; what it says of sizes and tokens is for the backend.
func (t TrainerConfig) CheckMarks(g PrefixGroup) error {
	if err := g.Dropout.check(); err != nil {
		return err
	}
	if t.Full && g.Dropout.Rate > 0 {
		return fmt.Errorf("dropout rate is %v, but a full trainer has no adapter to drop from: set it to 0", g.Dropout.Rate)
	}
	for i, m := range g.Members {
		switch {
		case len(m.Train) != len(m.Tokens):
			return fmt.Errorf("member %d: %d train marks for %d tokens", i, len(m.Train), len(m.Tokens))
		case m.Value != nil && len(m.Value) != len(m.Tokens):
			return fmt.Errorf("member %d: %d value marks for %d tokens", i, len(m.Value), len(m.Tokens))
		case m.Value != nil && !t.Value:
			return fmt.Errorf("member %d has value marks, but the trainer has no value head: make it with TrainerConfig.Value", i)
		case len(g.Prompt) == 0 && m.Parent == 0 && len(m.Train) > 0 && m.Train[0]:
			return fmt.Errorf("member %d: the prompt is empty: a sequence needs at least one token before the first scored one", i)
		}
	}
	return nil
}

// CheckDerivatives refuses derivatives that a trainer of this configuration does
// not take back; their lengths are for the backend.
func (t TrainerConfig) CheckDerivatives(d Scores) error {
	switch {
	case d.LogSumSq != nil:
		return errors.New("a derivative of LogSumSq, which is not differentiated: leave it nil")
	case d.MeanLogProb != nil && !t.MeanLogProb:
		return errors.New("a derivative of MeanLogProb, which the trainer does not compute: make it with TrainerConfig.MeanLogProb")
	}
	return nil
}

// WithScore gives the adapter a value head of zeros: every value is 0 until it
// is trained (HF draws from N(0, 0.02) instead), in a copy.
func (a *Adapter) WithScore(c Config) *Adapter {
	b := *a
	b.Score = make([]float32, c.HiddenSize)
	return &b
}

// Flat is the adapter as a trainer's parameter vector: Params, then Score.
func (a *Adapter) Flat() []float32 {
	return append(append(make([]float32, 0, len(a.Params)+len(a.Score)), a.Params...), a.Score...)
}

// AdapterOf is the adapter in a LoRA trainer's parameter vector, which it copies;
// value says that the vector ends with a value head of c's hidden size.
func AdapterOf(c Config, lora LoRAConfig, baseDigest string, flat []float32, value bool) (*Adapter, error) {
	layout, err := TrainerConfig{LoRA: lora, Value: value}.Layout(c)
	if err != nil {
		return nil, err
	}
	if len(flat) != layout.Size() {
		return nil, fmt.Errorf("%w: %d numbers, the layout of %v with value head %v has %d", ErrAdapter, len(flat), lora, value, layout.Size())
	}
	a := &Adapter{LoRA: lora, BaseDigest: baseDigest, Params: append([]float32(nil), flat...)}
	if value {
		at := len(flat) - c.HiddenSize
		a.Params, a.Score = a.Params[:at:at], a.Params[at:]
	}
	return a, nil
}
