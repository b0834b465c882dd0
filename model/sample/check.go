package sample

import (
	"errors"
	"fmt"
	"math"

	"github.com/skein-rl/skein/model"
)

// Check reports every impossible sampling parameter, by field and value.
func Check(s model.Sampling) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0) {
		bad("temperature is %v, want 0 (greedy) or a finite number above", s.Temperature)
	}
	if !(s.TopP >= 0 && s.TopP <= 1) {
		bad("top_p is %v, want 0 to 1 (0 and 1 switch it off)", s.TopP)
	}
	if s.TopK < 0 {
		bad("top_k is %d, want 0 (off) or more", s.TopK)
	}
	if !(s.MinP >= 0 && s.MinP <= 1) {
		bad("min_p is %v, want 0 (off) to 1", s.MinP)
	}
	if p := s.RepetitionPenalty; !(p >= 0) || math.IsInf(p, 0) {
		bad("repetition_penalty is %v, want a finite number above 0 (0 and 1 switch it off)", p)
	}
	if p := s.FrequencyPenalty; math.IsNaN(p) || math.IsInf(p, 0) {
		bad("frequency_penalty is %v, want a finite number (0 switches it off)", p)
	}
	if p := s.PresencePenalty; math.IsNaN(p) || math.IsInf(p, 0) {
		bad("presence_penalty is %v, want a finite number (0 switches it off)", p)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	return nil
}

// CheckRow reports everything in a row that DrawRow could not serve with a
// vocabulary of that many tokens, by field and value.
func CheckRow(row *model.DecodeRow, vocab int) error {
	errs := []error{Check(row.Sampling)}
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("sample: "+format, a...)) }
	for i, b := range row.Bias {
		if b.ID < 0 || int(b.ID) >= vocab {
			bad("bias %d is for token %d, the vocabulary has 0 to %d", i, b.ID, vocab-1)
		}
		if b.Bias != b.Bias || b.Bias > math.MaxFloat32 {
			bad("bias of token %d is %v, want a finite number, or -Inf to forbid the token", b.ID, b.Bias)
		}
	}
	if row.Top < 0 {
		bad("top is %d, want 0 (none) or more", row.Top)
	}
	if NeedsHistory(row.Sampling) {
		switch n := len(row.History); {
		case n == 0 || row.History[n-1] != row.Last:
			bad("history of %d tokens does not end in the row's last token, %d: penalties need the sequence", n, row.Last)
		case row.Prompt < 0 || row.Prompt > n:
			bad("prompt is %d tokens of a history of %d", row.Prompt, n)
		}
		for i, id := range row.History {
			if id < 0 || int(id) >= vocab {
				bad("history has token %d at %d, the vocabulary has 0 to %d", id, i, vocab-1)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// NeedsHost says whether a row asks for more than a draw with temperature,
// top-k and top-p: DrawRow then needs its logits on the host.
func NeedsHost(row *model.DecodeRow) bool {
	return edits(row) || row.Raw || row.Top > 0 || row.Sampling.MinP > 0 && row.Sampling.Temperature > 0
}

// NeedsHistory says whether a row with this sampling needs its History.
func NeedsHistory(s model.Sampling) bool {
	return s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0
}

// edits says whether the logits change before the draw.
func edits(row *model.DecodeRow) bool {
	return NeedsHistory(row.Sampling) || len(row.Bias) > 0 || row.Constraint != nil
}
