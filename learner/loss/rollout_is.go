package loss

import (
	"fmt"
	"math"
	"strings"
)

// Rollout importance modes: how the ratio learner/engine of the same tokens is
// taken and bounded. Mask modes with both bounds are IcePop's double-sided mask
// (Ling team 2025, arXiv:2510.18855; its bounds are 0.5 and 5);
// reject modes decide alike but leave what they keep at weight 1, for an old
// policy that corrects already. Sequence modes use the product over the row's tokens (its
// log is a sum, so it grows with length); geometric modes the length-normalised
// product. The mode in use is part of the run's configuration and metrics.
const (
	TokenTruncate     = "token_truncate"
	TokenMask         = "token_mask"
	SequenceTruncate  = "sequence_truncate"
	SequenceMask      = "sequence_mask"
	GeometricTruncate = "geometric_truncate"
	GeometricMask     = "geometric_mask"
	TokenReject       = "token_reject"
	SequenceReject    = "sequence_reject"
	GeometricReject   = "geometric_reject"
)

// RolloutModes lists the modes.
var RolloutModes = []string{TokenTruncate, TokenMask, SequenceTruncate, SequenceMask, GeometricTruncate, GeometricMask, TokenReject, SequenceReject, GeometricReject}

// RolloutIS corrects for tokens having been sampled by another program or an
// older policy than the one the step starts from (truncated importance
// sampling, Yao et al. 2025, "Your efficient RL framework secretly brings you
// off-policy RL training"; masked: "Small leak can sink a great ship", Liu et
// al. 2025). Names as TRL's vllm_importance_sampling_*.
type RolloutIS struct {
	Mode string
	// ClipMin and ClipMax bound the ratio: truncate modes clamp to them, mask and
	// reject modes set a ratio outside to 0. nil = no bound on that side.
	ClipMin, ClipMax *float64
}

// Validate reports an unknown mode or bounds that exclude everything.
func (is RolloutIS) Validate() error {
	known := false
	for _, m := range RolloutModes {
		known = known || m == is.Mode
	}
	if !known {
		return fmt.Errorf("rollout_importance_sampling_mode: unknown %q; use one of %s", is.Mode, strings.Join(RolloutModes, ", "))
	}
	if is.ClipMin != nil && !(*is.ClipMin >= 0) {
		return fmt.Errorf("rollout_importance_sampling_clip_min: %v is not a number >= 0", *is.ClipMin)
	}
	if is.ClipMax != nil && !(*is.ClipMax > 0) {
		return fmt.Errorf("rollout_importance_sampling_clip_max: %v is not a number > 0", *is.ClipMax)
	}
	if is.ClipMin != nil && is.ClipMax != nil && *is.ClipMin > *is.ClipMax {
		return fmt.Errorf("rollout_importance_sampling_clip_min: %v exceeds clip_max %v", *is.ClipMin, *is.ClipMax)
	}
	if strings.HasSuffix(is.Mode, "_reject") && is.ClipMin == nil && is.ClipMax == nil {
		return fmt.Errorf("rollout_importance_sampling_clip_min, rollout_importance_sampling_clip_max: neither is set, so %s keeps everything; use e.g. 0.5 and 5", is.Mode)
	}
	return nil
}

// Ratio gives the weights of one row [T] (token modes: one per token; others:
// one for the row). old are the learner's log-probabilities before the update,
// sampling the engine's; mask as in [Row]. A token whose sampling
// log-probability is NaN counts as not corrected.
func (is RolloutIS) Ratio(old, sampling []float64, mask []bool) ([]float64, error) {
	if err := is.Validate(); err != nil {
		return nil, err
	}
	if len(old) != len(sampling) || mask != nil && len(mask) != len(old) {
		return nil, fmt.Errorf("loss: rollout ratio: %d old, %d sampling log-probabilities, %d mask values", len(old), len(sampling), len(mask))
	}
	diff := make([]float64, len(old))
	sum, n := 0.0, 0.0
	for t := range old {
		if mask != nil && !mask[t] {
			continue
		}
		n++
		if d := old[t] - sampling[t]; !math.IsNaN(d) {
			diff[t] = d
			sum += d
		}
	}
	switch is.Mode {
	case SequenceTruncate, SequenceMask, SequenceReject:
		diff = []float64{sum}
	case GeometricTruncate, GeometricMask, GeometricReject:
		diff = []float64{sum / floor1(n)}
	}
	lo, hi := math.Inf(-1), math.Inf(1)
	if is.ClipMin != nil {
		lo = *is.ClipMin
	}
	if is.ClipMax != nil {
		hi = *is.ClipMax
	}
	truncate, reject := strings.HasSuffix(is.Mode, "_truncate"), strings.HasSuffix(is.Mode, "_reject")
	for t, d := range diff {
		x := math.Exp(d)
		switch {
		case truncate:
			x = min(max(x, lo), hi)
		case x < lo || x > hi:
			x = 0
		case reject:
			x = 1
		}
		diff[t] = x
	}
	return diff, nil
}
