package learner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

// References: what a KL is measured against, and what dpo, kto and bco are tied
// to.
const (
	ReferenceStart  = "start"  // the parameters before the first step
	ReferenceBase   = "base"   // the model without adapter
	ReferenceMoving = "moving" // the policy of some steps ago (on rollouts)
)

// ReferenceConfig says which reference.
type ReferenceConfig struct {
	// Reference is "start", "base" or "moving". Start and base are the same where
	// the start adapter is fresh.
	Reference string `yaml:"reference" json:"reference"`
	// A moving reference begins as the start and becomes, after every
	// RefModelSyncSteps steps, α·policy + (1-α)·reference with α =
	// RefModelMixupAlpha (TR-DPO, Gorbatovski et al. 2024, arXiv:2404.09656; TRL's
	// sync_ref_model). It is part of the checkpoint.
	RefModelSyncSteps  int     `yaml:"ref_model_sync_steps" json:"ref_model_sync_steps"`
	RefModelMixupAlpha float64 `yaml:"ref_model_mixup_alpha" json:"ref_model_mixup_alpha"`
}

// defaultReference has TRL's numbers.
func defaultReference() ReferenceConfig {
	return ReferenceConfig{Reference: ReferenceStart, RefModelSyncSteps: 512, RefModelMixupAlpha: .6}
}

func (c Config) validateReference(bad func(string, ...any)) {
	switch c.Reference {
	case ReferenceStart:
	case ReferenceBase, ReferenceMoving:
		switch {
		case c.Offline() && c.Reference == ReferenceMoving:
			bad("reference: %q is for training on rollouts; %s takes %q or %q", c.Reference, c.Algorithm, ReferenceStart, ReferenceBase)
		case !c.Offline() && c.Beta == 0:
			bad("reference: %q, but beta is 0, so none is read; set beta or leave reference out", c.Reference)
		}
	default:
		bad("reference: unknown %q; use %q, %q or %q", c.Reference, ReferenceStart, ReferenceBase, ReferenceMoving)
	}
	if c.RefModelSyncSteps < 1 {
		bad("ref_model_sync_steps: %d is below 1; use e.g. 512", c.RefModelSyncSteps)
	}
	if !(c.RefModelMixupAlpha > 0 && c.RefModelMixupAlpha <= 1) {
		bad("ref_model_mixup_alpha: %v is outside (0, 1]; 1 copies the policy", c.RefModelMixupAlpha)
	}
}

// refParams are the reference's parameters; nil is the model without adapter.
func (l *Learner) refParams() []float32 {
	switch l.cfg.Reference {
	case ReferenceBase:
		return nil
	case ReferenceMoving:
		return l.moving
	}
	return l.start
}

// isReference says whether params are the very reference: scoring them again
// would give the same numbers but for the kernels' rounding.
func (l *Learner) isReference(params []float32) bool {
	if ref := l.refParams(); ref != nil {
		return slices.Equal(params, ref)
	}
	return !l.ident.Full && addsNothing(l.tr.Layout(), params)
}

// addsNothing says that every B of an adapter is zero.
func addsNothing(layout model.Layout, params []float32) bool {
	for _, p := range layout {
		if strings.Contains(p.Name, "lora_B") && slices.ContainsFunc(params[p.Offset:p.Offset+p.Len()], func(x float32) bool { return x != 0 }) {
			return false
		}
	}
	return true
}

// nextReference is the moving reference after a step that made params; the
// current one when it does not move then.
func (l *Learner) nextReference(step uint64, params []float32) ([]float32, error) {
	c := l.cfg
	if c.Reference != ReferenceMoving || step%uint64(c.RefModelSyncSteps) != 0 {
		return l.moving, nil
	}
	if c.RefModelMixupAlpha == 1 {
		return slices.Clone(params), nil
	}
	out := make([]float32, len(params))
	for i, x := range params {
		out[i] = float32(c.RefModelMixupAlpha*float64(x) + (1-c.RefModelMixupAlpha)*float64(l.moving[i]))
		if f := float64(out[i]); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("%w: parameter %d of the reference is %v", ErrDiverged, i, f)
		}
	}
	return out, nil
}
