package preference

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SFTTerm is the loss type that is no comparison: the cross entropy of the
// chosen completions, a mean over their tokens in the whole step (RPO, Pang et
// al. 2024, arXiv:2404.19733, eq. 1).
const SFTTerm = "sft"

// DPOConfig is a loss on pairs. Field names follow TRL's DPOConfig.
type DPOConfig struct {
	// LossTypes has one or more of DPOTypes(); several are summed (MPO,
	// arXiv:2411.10442).
	LossTypes []string
	// LossWeights has one weight >= 0 per loss type; nil is 1 for each.
	LossWeights []float64
	// Beta is the strength of the tie to the reference, > 0 (IPO's τ, ORPO's λ).
	Beta float64
	// LabelSmoothing in [0, 0.5) is the share of verdicts taken for wrong; used
	// by sigmoid, aot, aot_unpaired, robust, and exo_pair, which needs it > 0.
	LabelSmoothing float64
	// FDivergence is one of Divergences; FAlpha the α of alpha_divergence.
	FDivergence string
	FAlpha      float64
	// LDAlpha in [0, 1] weighs the tokens of the longer completion beyond the
	// shorter one's length (LD-DPO, Liu et al. 2024, arXiv:2409.06411);
	// nil is off, which is 1.
	LDAlpha *float64
	// Weighting is WeightingNone, WeightingWPO or WeightingWPOAligned. It weighs
	// the comparisons, not the sft term.
	Weighting string
	// ReferenceFree takes the reference for uniform: every Ref is 0.
	ReferenceFree bool
	// RPOAlpha, when > 0, adds the sft term with that weight (TRL's rpo_alpha);
	// the same as SFTTerm in LossTypes.
	RPOAlpha float64
	// DiscopopTau is discopop's temperature τ, in (0, 1].
	DiscopopTau float64
	// SimPOGamma is simpo's target margin γ, >= 0.
	SimPOGamma float64
}

// DefaultDPOConfig has TRL 1.16's defaults, and SimPO's paper's γ.
func DefaultDPOConfig() DPOConfig {
	return DPOConfig{LossTypes: []string{"sigmoid"}, Beta: 0.1, FDivergence: ReverseKL, FAlpha: 0.5, DiscopopTau: 0.05, SimPOGamma: 0.5}
}

// kind is a loss type and which options it heeds.
type kind struct {
	term     func(c DPOConfig, chosen, rejected side) term // nil: sft, or over the whole step
	score    bool                                          // f-divergence
	smooth   bool                                          // LabelSmoothing
	unlinked bool                                          // needs no reference
	step     bool                                          // aot: over the whole step
}

var kinds = map[string]kind{
	"sigmoid": {term: sigmoidTerm, score: true, smooth: true}, "hinge": {term: hingeTerm, score: true},
	"ipo": {term: ipoTerm, score: true}, "sigmoid_norm": {term: sigmoidNormTerm, score: true},
	"exo_pair": {term: exoTerm, score: true, smooth: true}, "robust": {term: robustTerm, score: true, smooth: true},
	"nca_pair": {term: ncaTerm}, "bco_pair": {term: bcoPairTerm}, "sppo_hard": {term: sppoTerm},
	"apo_zero": {term: apoZeroTerm}, "apo_down": {term: apoDownTerm}, "discopop": {term: discopopTerm, score: true},
	"aot": {smooth: true, step: true}, "aot_unpaired": {smooth: true, step: true},
	"simpo": {term: simpoTerm, unlinked: true}, "orpo": {term: orpoTerm, unlinked: true},
	SFTTerm: {unlinked: true},
}

// DPOTypes lists the loss types, sorted.
func DPOTypes() []string { return slices.Sorted(maps.Keys(kinds)) }

// part is one loss type with its weight.
type part struct {
	name   string
	weight float64
	kind
}

func (c DPOConfig) parts() []part {
	var out []part
	for i, t := range c.LossTypes {
		w := 1.0
		if c.LossWeights != nil {
			w = c.LossWeights[i]
		}
		out = append(out, part{t, w, kinds[t]})
	}
	if c.RPOAlpha > 0 {
		out = append(out, part{SFTTerm, c.RPOAlpha, kinds[SFTTerm]})
	}
	return out
}

func (c DPOConfig) any(has func(kind) bool) bool {
	return slices.ContainsFunc(c.LossTypes, func(t string) bool { return has(kinds[t]) })
}

// NeedsReference reports whether every Seq needs Ref.
func (c DPOConfig) NeedsReference() bool {
	return !c.ReferenceFree && c.any(func(k kind) bool { return !k.unlinked })
}

// WholeStep reports whether DPO must see all pairs of an optimizer step at once
// (aot and aot_unpaired sort across them): score all micro-batches first, call
// DPO once, then run them forward and backward with its derivatives.
func (c DPOConfig) WholeStep() bool { return c.any(func(k kind) bool { return k.step }) }

// Validate reports every problem with field, value and remedy.
func (c DPOConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(c.LossTypes) == 0 {
		bad("loss_type: none; use one or more of %s", strings.Join(DPOTypes(), ", "))
	}
	for i, t := range c.LossTypes {
		if _, ok := kinds[t]; !ok {
			bad("loss_type: unknown %q; use one of %s", t, strings.Join(DPOTypes(), ", "))
		}
		if slices.Contains(c.LossTypes[:i], t) {
			bad("loss_type: %q twice; name it once and give it the sum of its loss_weights", t)
		}
	}
	if c.LossWeights != nil && len(c.LossWeights) != len(c.LossTypes) {
		bad("loss_weights: %d values for %d loss types; give one each, or none", len(c.LossWeights), len(c.LossTypes))
	}
	for i, w := range c.LossWeights {
		if !(w >= 0 && finite(w)) {
			bad("loss_weights[%d]: %v is not a finite number >= 0", i, w)
		}
	}
	if !(c.Beta > 0 && finite(c.Beta)) {
		bad("beta: %v is not a finite number > 0; use e.g. 0.1", c.Beta)
	}
	c.validateSmoothing(bad)
	c.validateDivergence(bad)
	c.validateRest(bad)
	return errors.Join(errs...)
}

func (c DPOConfig) validateSmoothing(bad func(string, ...any)) {
	e := c.LabelSmoothing
	switch {
	case !(e >= 0 && e < 0.5):
		bad("label_smoothing: %v is outside [0, 0.5): at 0.5 the verdicts say nothing; use e.g. 0.1", e)
	case e == 0 && slices.Contains(c.LossTypes, "exo_pair"):
		bad("label_smoothing: 0, but exo_pair divides by it; use e.g. 0.001")
	case e > 0 && !c.any(func(k kind) bool { return k.smooth }):
		bad("label_smoothing: %v, but %s heeds none; set 0 or use sigmoid, robust, exo_pair, aot or aot_unpaired", e, strings.Join(c.LossTypes, ", "))
	}
}

func (c DPOConfig) validateDivergence(bad func(string, ...any)) {
	switch {
	case !slices.Contains(Divergences, c.FDivergence):
		bad("f_divergence_type: unknown %q; use one of %s", c.FDivergence, strings.Join(Divergences, ", "))
	case c.FDivergence != ReverseKL && !c.any(func(k kind) bool { return k.score }):
		bad("f_divergence_type: %q, but %s heeds only %s", c.FDivergence, strings.Join(c.LossTypes, ", "), ReverseKL)
	case c.FDivergence == AlphaDivergence && !finite(c.FAlpha):
		bad("f_alpha_divergence_coef: %v is not finite; use e.g. 0.5", c.FAlpha)
	}
}

func (c DPOConfig) validateRest(bad func(string, ...any)) {
	if c.LDAlpha != nil && !(*c.LDAlpha >= 0 && *c.LDAlpha <= 1) {
		bad("ld_alpha: %v is outside [0, 1]; use e.g. 0.5 or leave it out", *c.LDAlpha)
	}
	switch {
	case c.Weighting != WeightingNone && c.Weighting != WeightingWPO && c.Weighting != WeightingWPOAligned:
		bad("weighting: unknown %q; use %q, %q or leave it out", c.Weighting, WeightingWPO, WeightingWPOAligned)
	case c.Weighting != WeightingNone && c.WholeStep():
		bad("weighting: %q, but aot compares ranks, not pairs, so no pair has a weight; leave it out", c.Weighting)
	}
	if c.ReferenceFree && !c.any(func(k kind) bool { return !k.unlinked }) {
		bad("reference_free: true, but %s never uses a reference; leave it out", strings.Join(c.LossTypes, ", "))
	}
	if !(c.RPOAlpha >= 0 && finite(c.RPOAlpha)) {
		bad("rpo_alpha: %v is not a finite number >= 0; 0 is off", c.RPOAlpha)
	}
	if c.RPOAlpha > 0 && slices.Contains(c.LossTypes, SFTTerm) {
		bad("rpo_alpha: %v, but loss_type has %q already; use one of the two", c.RPOAlpha, SFTTerm)
	}
	if slices.Contains(c.LossTypes, "discopop") && !(c.DiscopopTau > 0 && c.DiscopopTau <= 1) {
		bad("discopop_tau: %v is outside (0, 1]; use e.g. 0.05", c.DiscopopTau)
	}
	if slices.Contains(c.LossTypes, "simpo") && !(c.SimPOGamma >= 0 && finite(c.SimPOGamma)) {
		bad("simpo_gamma: %v is not a finite number >= 0; use e.g. 0.5", c.SimPOGamma)
	}
}
