package table

import (
	"fmt"
	"math"
	"strings"
)

// Kind names a way to choose.
type Kind string

// The kinds. Ties of heaps go to the older entry.
const (
	FIFO        Kind = "fifo"        // oldest first
	LIFO        Kind = "lifo"        // newest first
	Uniform     Kind = "uniform"     // each with the same probability
	Prioritized Kind = "prioritized" // with probability priority^exponent / sum
	MaxHeap     Kind = "max_heap"    // highest priority first
	MinHeap     Kind = "min_heap"    // lowest priority first
)

// structures are the ways to choose, each in its own file.
var structures = map[Kind]structure{
	FIFO:        ordered{fifoKey},
	LIFO:        ordered{lifoKey},
	MaxHeap:     ordered{maxHeapKey},
	MinHeap:     ordered{minHeapKey},
	Uniform:     uniform{},
	Prioritized: prioritized{},
}

// byPriority says whether the kind looks at priorities.
func (k Kind) byPriority() bool { return k == Prioritized || k == MaxHeap || k == MinHeap }

func (k Kind) check(field string) error {
	if _, ok := structures[k]; ok {
		return nil
	}
	return fmt.Errorf("%s.kind = %q: want one of %s", field, k,
		strings.Join([]string{string(FIFO), string(LIFO), string(Uniform), string(Prioritized), string(MaxHeap), string(MinHeap)}, ", "))
}

// Fields by which a choice can be stratified.
const (
	ByTask   = "task"
	BySource = "source"
)

// Selector configures a choice, of what is sampled or of what is removed.
type Selector struct {
	Kind Kind `json:"kind"`
	// Exponent of priorities, prioritized only (alpha of Schaul et al. 2016,
	// eq. 1): 0 is uniform, 1 proportional. 0 to 4.
	Exponent float64 `json:"exponent"`
	// Stratify goes round the strata, "task" or "source", and chooses by Kind
	// within each, so that a task with many groups gets no more than one with
	// few. "" = no strata.
	Stratify string `json:"stratify"`
	// Epochs makes a choice without replacement: no group comes a second time
	// while one is there that has not come yet.
	Epochs bool `json:"epochs"`
}

func (s Selector) problems(field string) (out []error) {
	if err := s.Kind.check(field); err != nil {
		out = append(out, err)
	}
	switch {
	case s.Kind == Prioritized && !(s.Exponent >= 0 && s.Exponent <= 4):
		out = append(out, fmt.Errorf("%s.exponent = %v: want 0 (uniform) to 4, mostly 0.6 to 1", field, s.Exponent))
	case s.Kind != Prioritized && s.Exponent != 0:
		out = append(out, fmt.Errorf("%s.exponent = %v with kind %q: only %q has one (set it to 0)", field, s.Exponent, s.Kind, Prioritized))
	}
	if s.Stratify != "" && s.Stratify != ByTask && s.Stratify != BySource {
		out = append(out, fmt.Errorf("%s.stratify = %q: want \"\", %q or %q", field, s.Stratify, ByTask, BySource))
	}
	return out
}

// CheckPriority says why a group of priority p cannot stand in a structure of
// this selector.
func (s Selector) CheckPriority(p float64) error {
	if math.IsNaN(p) || math.IsInf(p, 0) {
		return fmt.Errorf("priority %v: want a finite number", p)
	}
	if s.Kind != Prioritized {
		return nil
	}
	if p < 0 {
		return fmt.Errorf("priority %v: a prioritized table wants 0 (never, while others are above) or more", p)
	}
	if p > 0 && pow(p, s.Exponent) > maxWeight>>weightBits {
		return fmt.Errorf("priority %v: to the power of %v it is above %d (scale priorities down)", p, s.Exponent, maxWeight>>weightBits)
	}
	return nil
}

// Same says whether two selectors keep the same structure.
func (s Selector) Same(o Selector) bool { return s == o }
