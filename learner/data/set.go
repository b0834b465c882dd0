package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Set is rows in memory and the order they are trained in. Immutable; safe for
// concurrent use.
type Set struct {
	name    string
	rows    []Example
	sizes   []int // rows of each source, which stand together
	weights []float64
	order   Order
	digest  string
}

// NewSet makes a set of one source whose rows are taken as they are given, for
// rows that come from elsewhere than files.
func NewSet(name string, rows []Example, order Order) *Set {
	return newSet(name, slices.Clone(rows), []int{len(rows)}, []float64{1}, order)
}

func newSet(name string, rows []Example, sizes []int, weights []float64, order Order) *Set {
	rules, err := json.Marshal(struct {
		Order
		Sizes   []int
		Weights []float64
	}{order, sizes, weights})
	if err != nil {
		rules = []byte(err.Error()) // numbers that are not finite, which Validate refuses
	}
	return &Set{name: name, rows: rows, sizes: sizes, weights: weights, order: order, digest: fmt.Sprintf("blake3:%x", digest(rows, string(rules)))}
}

// Name is what reports call the set.
func (s *Set) Name() string { return s.name }

// Digest identifies every token, weight and label of the set and the rules of
// its order; the seed is not part of it.
func (s *Set) Digest() string { return s.digest }

// Rows are the examples, in the order of the files. Treat them as read-only.
func (s *Set) Rows() []Example { return s.rows }

// Len is the number of rows.
func (s *Set) Len() int { return len(s.rows) }

// Epoch lists the rows of an epoch (from 0) in the order they are trained, as
// indexes of Rows: a pure function of the set, the seed and the epoch. Mixing
// may leave rows out or repeat them.
func (s *Set) Epoch(seed, epoch uint64) []int {
	return s.order.epoch(s.rows, s.sizes, s.weights, seed, epoch)
}

// Split moves about share of each source's rows, chosen by seed, into a set for
// evaluation: at least one row of the whole, and never all. Its order is that of
// the files.
func (s *Set) Split(share float64, seed uint64) (train, eval *Set, err error) {
	if !(share > 0 && share < 1) {
		return nil, nil, fmt.Errorf("data: eval_split: %v is not between 0 and 1; use e.g. 0.1", share)
	}
	var kept, held []Example
	sizes, heldSizes := make([]int, len(s.sizes)), make([]int, len(s.sizes))
	at := 0
	for i, n := range s.sizes {
		perm := make([]int, n)
		for k := range perm {
			perm[k] = k
		}
		shuffle(perm, seed, 0, purposeSplit+uint64(i))
		out := map[int]bool{}
		for _, k := range perm[:int(float64(n)*share+.5)] {
			out[k] = true
		}
		for k := range n {
			if out[k] {
				held = append(held, s.rows[at+k])
				heldSizes[i]++
			} else {
				kept = append(kept, s.rows[at+k])
				sizes[i]++
			}
		}
		at += n
	}
	if len(held) == 0 || slices.Contains(sizes, 0) {
		return nil, nil, fmt.Errorf("data: eval_split: %v of %v rows (by source) leaves %d for evaluation and %v for training; give more rows, or data.eval", share, s.sizes, len(held), sizes)
	}
	return newSet(s.name, kept, sizes, s.weights, s.order),
		newSet(s.name+" (held out)", held, heldSizes, s.weights, Order{Mix: MixConcat}), nil
}

// Counts are sums over a set's rows.
type Counts struct {
	Rows      int `json:"rows"`
	Tokens    int `json:"tokens"`  // computed: prompts and completions
	Trained   int `json:"trained"` // with a weight above 0
	Longest   int `json:"longest"` // tokens of the longest row, prompt included
	Pairs     int `json:"pairs,omitempty"`
	Desirable int `json:"desirable,omitempty"` // verdicts that are true
}

// Counts sums the set up.
func (s *Set) Counts() Counts {
	c := Counts{Rows: len(s.rows)}
	for i := range s.rows {
		e := &s.rows[i]
		c.Tokens += e.Len()
		c.Trained += e.Chosen.Trained() + e.Rejected.Trained()
		c.Longest = max(c.Longest, e.Longest())
		if e.Pair() {
			c.Pairs++
		}
		if e.Label {
			c.Desirable++
		}
	}
	return c
}

// Longest is the length of the example's longest sequence.
func (e *Example) Longest() int {
	return len(e.Prompt) + max(len(e.Chosen.Tokens), len(e.Rejected.Tokens))
}

// nameOf joins the names of files for reports.
func nameOf(sources []Source) string {
	var names []string
	for _, s := range sources {
		names = append(names, s.Path)
	}
	return strings.Join(names, "+")
}
