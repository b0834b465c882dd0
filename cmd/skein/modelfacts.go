package main

import (
	"fmt"
	"strings"

	"github.com/skein-rl/skein/model"
)

// familyFacts says in words what makes an architecture more than a plain Llama;
// one line for what concerns context, one each for attention, MLP and scales.
func familyFacts(c model.Config) []string {
	var lines []string
	line := func(what string, facts ...string) {
		var some []string
		for _, f := range facts {
			if f != "" {
				some = append(some, f)
			}
		}
		if len(some) > 0 {
			lines = append(lines, what+": "+strings.Join(some, ", "))
		}
	}
	when := func(ok bool, format string, args ...any) string {
		if !ok {
			return ""
		}
		return fmt.Sprintf(format, args...)
	}
	windows, free, experts := 0, 0, 0
	for i := range c.NumHiddenLayers {
		if c.Window(i) > 0 {
			windows++
		}
		if c.MoE(i) {
			experts++
		}
		if i < len(c.NoRopeLayers) && c.NoRopeLayers[i] {
			free++
		}
	}
	rope := c.RopeScaling
	line("context", fmt.Sprintf("sequences of up to %d tokens", c.ContextLimit()),
		when(windows > 0, "a window of %d in %d of %d layers", c.SlidingWindow, windows, c.NumHiddenLayers),
		when(rope.Type != "", "rope scaling %s by %g from %d", rope.Type, rope.Factor, rope.OriginalMaxPositions),
		when(c.LocalRopeTheta > 0, "rope theta %g in window layers", c.LocalRopeTheta),
		when(c.RotaryDim > 0 && c.RotaryDim < c.HeadDim, "%d of %d numbers of a head rotate", c.RotaryDim, c.HeadDim),
		when(free > 0, "no positions in %d layers", free))
	line("attention",
		when(c.QKVBias, "biases of q, k and v"), when(c.OutputBias, "bias of the output"), when(c.QKNorm, "q and k normed by head"),
		when(c.AttnScale > 0, "scores scaled by %.4g", c.AttnScale), when(c.AttnSoftcap > 0, "scores capped at %g", c.AttnSoftcap),
		when(c.FusedProjections, "q, k and v in one matrix, gate and up in another"))
	line("MLP",
		when(c.Experts > 0, "%d experts of width %d in %d of %d layers, %d a token", c.Experts, c.ExpertSize, experts, c.NumHiddenLayers, c.ExpertsPerToken),
		when(c.Experts > 0 && c.NormTopK, "their weights normalised"), when(c.HiddenAct != "" && c.HiddenAct != "silu", "activation %s", c.HiddenAct))
	line("norms and scales",
		when(c.SandwichNorm, "outputs of attention and MLP normed"), when(c.NormPlusOne, "norm weights stored minus one"),
		when(c.EmbedScale > 0, "embeddings times %.6g", c.EmbedScale), when(c.LogitSoftcap > 0, "logits capped at %g", c.LogitSoftcap))
	return lines
}
