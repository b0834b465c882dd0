package learner

import (
	"fmt"
	"slices"

	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
)

// Dataset identifies what a run trains on, so that a checkpoint is never
// resumed on something else unnoticed.
type Dataset struct {
	Name   string `json:"name"`             // task source, e.g. "gsm8k"
	Digest string `json:"digest,omitempty"` // of its content, where it has one
}

// Identity is what a checkpoint is bound to.
type Identity struct {
	Run  string           `json:"run"`
	Base string           `json:"base"` // model digest
	LoRA model.LoRAConfig `json:"lora"` // zero when Full
	Full bool             `json:"full"` // every base weight is trained
	// Critic is the critic's adapter shape; nil without one.
	Critic  *model.LoRAConfig `json:"critic,omitempty"`
	Dataset Dataset           `json:"dataset"`
}

// Learner holds the parameters in training and makes steps. Not safe for
// concurrent use; the trainer is its own while it lives.
type Learner struct {
	cfg    Config
	ident  Identity
	tr     model.Trainer
	decay  []Decay
	params []float32
	opt    AdamW
	start  []float32 // the frozen start parameters
	moving []float32 // the moving reference; start's contents until it moves
	step   uint64    // steps made
	// version is the policy version the parameters are, known to workers.
	version uint64
	lease   uint64 // last lease trained
	epoch   uint64 // offline: epochs finished
	cursor  uint64 // offline: rows of this epoch consumed
	bco     preference.BCOState
	critic  *critic // ppo's
	entropy EntropyState
	vectors uint64       // ids given to parameter vectors
	shared  *paramVector // the reference, as computers know it
	helpers []*helper    // of the next step
}

// New makes a learner at step 0 and policy version 0 with the start parameters
// (copied), in the trainer's layout. The start parameters are also the KL
// reference unless the configuration names another. For ppo use NewPPO.
func New(c Config, ident Identity, tr model.Trainer, start []float32) (*Learner, error) {
	if c.Algorithm == PPO || ident.Critic != nil {
		return nil, fmt.Errorf("learner: algorithm: ppo has a critic, %q has none; use NewPPO for the one and New for the other", c.Algorithm)
	}
	return create(c, ident, tr, start)
}

// NewPPO is New for ppo, with the critic; ident.Critic is the critic's shape.
func NewPPO(c Config, ident Identity, tr model.Trainer, start []float32, critic Critic) (*Learner, error) {
	if c.Algorithm != PPO || ident.Critic == nil {
		return nil, fmt.Errorf("learner: algorithm: %q with critic %v; NewPPO is for %q and wants Identity.Critic", c.Algorithm, ident.Critic, PPO)
	}
	l, err := create(c, ident, tr, start)
	if err == nil {
		l.critic, err = newCritic(c, critic)
	}
	return l, err
}

func create(c Config, ident Identity, tr model.Trainer, start []float32) (*Learner, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("learner: configuration: %w", err)
	}
	if ident.Full && c.LoRADropout > 0 {
		return nil, fmt.Errorf("learner: lora_dropout: %v, but all weights are trained and there is no adapter to drop from; set it to 0", c.LoRADropout)
	}
	layout := tr.Layout()
	if err := checkStart("policy", start, layout.Size()); err != nil {
		return nil, err
	}
	return &Learner{
		cfg: c, ident: ident, tr: tr, decay: DecayOf(layout, c.WeightDecay),
		params: slices.Clone(start), start: slices.Clone(start), moving: slices.Clone(start), opt: NewAdamW(len(start)),
		entropy: EntropyState{Coef: c.EntropyCoef},
	}, nil
}

// StepNumber is the number of steps made.
func (l *Learner) StepNumber() uint64 { return l.step }

// Version is the policy version the parameters are.
func (l *Learner) Version() uint64 { return l.version }

// Params returns a copy of the parameters.
func (l *Learner) Params() []float32 { return slices.Clone(l.params) }

// Adapter is the parameters as an adapter; a full one when all weights are
// trained.
func (l *Learner) Adapter() *model.Adapter {
	return &model.Adapter{LoRA: l.ident.LoRA, Full: l.ident.Full, BaseDigest: l.ident.Base, Params: l.Params()}
}

// Precisions of published policies (Config.Publish).
const (
	PublishF32  = "f32"
	PublishBF16 = "bf16"
)

// published is the adapter as the workers get it.
func (l *Learner) published() *model.Adapter {
	if l.cfg.Publish == PublishBF16 {
		return l.Adapter().RoundBF16()
	}
	return l.Adapter()
}

// rowsOf gives each episode's sequences.
func rowsOf(b *Batch) [][]sequence {
	rows := make([][]sequence, len(b.Episodes))
	for i, e := range b.Episodes {
		rows[i] = e.seqs
	}
	return rows
}

// needed says whether an episode's forward pass can change the gradient: a row
// of advantage 0 has none unless the KL, the entropy bonus or a statistic over
// all tokens asks for it.
func (l *Learner) needed(e Episode) bool {
	c := l.cfg
	everything := c.Algorithm == PPO || c.Algorithm == Reinforce || c.Beta != 0 || c.EntropyCoef != 0 || c.UseAdaptiveEntropy ||
		c.TopEntropyQuantile < 1 || c.RolloutISDenominator == loss.DenominatorKept || c.M2Threshold != nil
	return e.Tokens > 0 && (everything || slices.ContainsFunc(e.advantages(), func(a float64) bool { return a != 0 }))
}

// numbered gives parameters an id.
func (l *Learner) numbered(place int, data []float32) *paramVector {
	l.vectors++
	return &paramVector{place, l.vectors, data}
}

// reference is the KL reference, under the same id while it is the same slice.
func (l *Learner) reference(data []float32) *paramVector {
	if r := l.shared; r == nil || len(r.data) != len(data) || len(data) > 0 && &r.data[0] != &data[0] {
		l.shared = l.numbered(placeReference, data)
	}
	return l.shared
}
