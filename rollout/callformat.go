package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

// CallFormat is how a family of models writes tool calls in its turns.
type CallFormat struct {
	// Name is what configurations and reports call it.
	Name string
	// find gives where the next call from an offset begins and where its body
	// does; at is -1 when there is none.
	find func(text string, from int) (at, body int)
	// read reads a body: its calls, the offset after it and its closing mark,
	// and whether the text ended inside.
	read func(text string, body int) (calls []Part, end int, open bool)
	// local: what find gives depends on what comes before from.
	local bool
	// fits reports whether a template teaches the format; nil for formats that
	// are only chosen by name.
	fits func(template string) bool
	// thought are the marks around a thought beside <think> and </think>.
	thought [2]string
	// plain takes the family's marks off a piece of text; nil = there are none.
	plain func(text string) string
}

// AutoCallFormat stands for the format that the model's template teaches.
const AutoCallFormat = "auto"

// callFormats in the order in which a template is tried against them: the more
// particular first. Hermes is also what RenderWithTools teaches a model whose
// template ignores tools, and what every format falls back to.
var callFormats = []*CallFormat{
	harmonyCalls, functionaryCalls, gemma4Calls, functionGemmaCalls, deepSeekCalls, mistralCalls, lfm2Calls, cohereCalls,
	phiCalls, functoolsCalls, glmCalls, xmlCalls, invokeCalls, functionTagCalls, hermesCalls, llamaCalls, reactCalls, fencedCalls,
}

// Begins is where the first call of a text begins, in this format or in Hermes
// marks; -1 without one.
func (f *CallFormat) Begins(text string) int {
	at, _ := f.find(text, 0)
	if other, _ := hermesCalls.find(text, 0); other >= 0 && (at < 0 || other < at) {
		at = other
	}
	return at
}

// CallFormats lists the names of the formats.
func CallFormats() []string {
	names := make([]string, len(callFormats))
	for i, f := range callFormats {
		names[i] = f.Name
	}
	return names
}

// CallFormatNamed finds a format by name.
func CallFormatNamed(name string) (*CallFormat, error) {
	for _, f := range callFormats {
		if f.Name == name {
			return f, nil
		}
	}
	return nil, fmt.Errorf("rollout: tool-call format %q is unknown; the known ones are %s", name, strings.Join(CallFormats(), ", "))
}

// CallFormatFor chooses the format that a chat template teaches: Hermes when it
// teaches none, for then the prompt does (model.RenderWithTools).
func CallFormatFor(t *model.ChatTemplate) *CallFormat {
	if !t.SupportsTools() {
		return hermesCalls
	}
	return callFormatOf(t.Source())
}

func callFormatOf(template string) *CallFormat {
	for _, f := range callFormats {
		if f.fits != nil && f.fits(template) {
			return f
		}
	}
	return hermesCalls
}

// findMark finds the first of some opening marks.
func findMark(marks ...string) func(string, int) (int, int) {
	return func(text string, from int) (at, body int) {
		at = -1
		for _, m := range marks {
			if i := strings.Index(text[from:], m); i >= 0 && (at < 0 || from+i < at) {
				at, body = from+i, from+i+len(m)
			}
		}
		return at, body
	}
}

// within cuts a body at its closing mark ("" when the format has none); without
// one before the next opening mark it ends there, or with the text, and is open.
func within(text string, from int, closing, opening string) (body string, end int, open bool) {
	stop, next := len(text), false
	if opening != closing {
		if i := strings.Index(text[from:], opening); i >= 0 {
			stop, next = from+i, true
		}
	}
	if i := strings.Index(text[from:stop], closing); closing != "" && i >= 0 {
		return text[from : from+i], from + i + len(closing), false
	}
	return text[from:stop], stop, !next
}

func contains(all ...string) func(string) bool {
	return func(template string) bool {
		return !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(template, s) })
	}
}
