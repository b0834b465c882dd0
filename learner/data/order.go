package data

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Ways of mixing several sources.
const (
	MixConcat = "concat"           // every row of every source once an epoch
	MixUnder  = "interleave_under" // by weight, until the first source is used up
	MixOver   = "interleave_over"  // by weight, until every source is used up; small ones repeat
)

// Orders of a curriculum.
const (
	EasyFirst = "ascending"
	HardFirst = "descending"
)

// Order says in which order a set's rows are trained. Fields are settings of a
// run; the zero value trains rows as they stand.
type Order struct {
	// Shuffle the rows of each epoch.
	Shuffle bool `yaml:"shuffle" json:"shuffle"`
	// Mix is one of the ways above; weights are the sources'.
	Mix string `yaml:"mix" json:"mix"`
	// Curriculum orders rows by a numeric column.
	Curriculum Curriculum `yaml:"curriculum" json:"curriculum"`
	// LengthWindow groups rows of like length, within windows of so many rows in
	// the epoch's order; 0 = off. It saves padding on devices that pad.
	LengthWindow int `yaml:"length_window" json:"length_window"`
}

// Curriculum trains rows from easy to hard in the first epochs, after that in
// the usual order.
type Curriculum struct {
	// Column holds each row's difficulty; "" = no curriculum.
	Column string `yaml:"column,omitempty" json:"column,omitempty"`
	// Order is ascending or descending.
	Order string `yaml:"order" json:"order"`
	// Epochs that are ordered.
	Epochs int `yaml:"epochs" json:"epochs"`
	// Buckets of difficulty: rows within one are in the usual order. More
	// buckets than rows sort strictly.
	Buckets int `yaml:"buckets" json:"buckets"`
}

// DefaultOrder shuffles and concatenates.
func DefaultOrder() Order {
	return Order{Shuffle: true, Mix: MixConcat, Curriculum: Curriculum{Order: EasyFirst, Epochs: 1, Buckets: 10}}
}

// Validate reports every problem with field, value and remedy.
func (o Order) Validate() (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if o.Mix != MixConcat && o.Mix != MixUnder && o.Mix != MixOver {
		bad("mix: unknown %q; use %q, %q or %q", o.Mix, MixConcat, MixUnder, MixOver)
	}
	if o.LengthWindow < 0 {
		bad("length_window: %d is below 0; use e.g. 256 rows, or 0 for none", o.LengthWindow)
	}
	if c := o.Curriculum; c.Column != "" {
		if c.Order != EasyFirst && c.Order != HardFirst {
			bad("curriculum.order: unknown %q; use %q or %q", c.Order, EasyFirst, HardFirst)
		}
		if c.Epochs < 1 {
			bad("curriculum.epochs: %d is below 1; say how many epochs are ordered", c.Epochs)
		}
		if c.Buckets < 1 {
			bad("curriculum.buckets: %d is below 1; use e.g. 10", c.Buckets)
		}
	}
	return errs
}

// shares is how many rows an epoch takes of each source.
func (o Order) shares(sizes []int, weights []float64) []int {
	if o.Mix == MixConcat || o.Mix == "" || len(sizes) < 2 {
		return slices.Clone(sizes)
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	total := math.Inf(1)
	if o.Mix == MixOver {
		total = 0
	}
	for i, n := range sizes {
		need := float64(n) * sum / weights[i] // rows after which source i is used up
		if o.Mix == MixOver {
			total = max(total, need)
		} else {
			total = min(total, need)
		}
	}
	out := make([]int, len(sizes))
	for i := range out {
		share := total * weights[i] / sum
		// the source that decides gives exactly its size, whatever the rounding
		if n := math.Round(share); math.Abs(n-share) < 1e-6 {
			share = n
		}
		if out[i] = int(math.Floor(share)); o.Mix == MixOver {
			out[i] = int(math.Ceil(share))
		}
	}
	return out
}

// epoch lists the rows of an epoch in the order they are trained: a pure
// function of the set, the seed and the epoch. first[i] is the first row of
// source i, whose rows stand together.
func (o Order) epoch(rows []Example, sizes []int, weights []float64, seed, epoch uint64) []int {
	var out []int
	at := 0
	for i, share := range o.shares(sizes, weights) {
		out = append(out, o.draw(at, sizes[i], share, uint64(i), seed, epoch)...)
		at += sizes[i]
	}
	if o.Shuffle && len(sizes) > 1 {
		shuffle(out, seed, epoch, purposeMix)
	} else if len(sizes) > 1 && o.Mix != MixConcat && o.Mix != "" {
		out = interleave(out, o.shares(sizes, weights))
	}
	if c := o.Curriculum; c.Column != "" && epoch < uint64(c.Epochs) {
		byDifficulty(out, rows, c)
	}
	if o.LengthWindow > 1 {
		for k, window := range slices.Collect(slices.Chunk(out, o.LengthWindow)) {
			slices.SortStableFunc(window, func(a, b int) int { return cmp.Compare(rows[a].Len(), rows[b].Len()) })
			if o.Shuffle && stream(seed, epoch, purposeWindow+uint64(k)).Uint64()&1 == 1 {
				slices.Reverse(window) // so that no length is always trained first
			}
		}
	}
	return out
}

// draw takes the share of one source in an epoch: the next rows of an endless
// stream of its permutations, so that no row comes again before all others had
// their turn.
func (o Order) draw(first, size, share int, source, seed, epoch uint64) []int {
	out := make([]int, 0, share)
	if size == 0 || share == 0 {
		return out
	}
	from := epoch * uint64(share)
	pass, at := from/uint64(size), int(from%uint64(size))
	for len(out) < share {
		n := min(size-at, share-len(out))
		if o.Shuffle {
			for _, i := range stream(seed, pass, source).Perm(size)[at : at+n] {
				out = append(out, first+i)
			}
		} else {
			for i := at; i < at+n; i++ {
				out = append(out, first+i)
			}
		}
		pass, at = pass+1, 0
	}
	return out
}

// interleave deals the blocks of shares out evenly.
func interleave(rows []int, shares []int) []int {
	type place struct {
		when float64
		row  int
	}
	var all []place
	at := 0
	for _, n := range shares {
		for k := range n {
			all = append(all, place{(float64(k) + .5) / float64(n), rows[at+k]})
		}
		at += n
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.when, b.when) })
	out := make([]int, len(all))
	for i, p := range all {
		out[i] = p.row
	}
	return out
}

// byDifficulty sorts rows into buckets of equal size by difficulty, keeping the
// order within.
func byDifficulty(order []int, rows []Example, c Curriculum) {
	ranked := slices.Clone(order)
	slices.SortStableFunc(ranked, func(a, b int) int {
		d := cmp.Compare(rows[a].Difficulty, rows[b].Difficulty)
		if c.Order == HardFirst {
			d = -d
		}
		return d
	})
	if c.Buckets >= len(order) {
		copy(order, ranked)
		return
	}
	bucket := map[int]int{}
	for rank, row := range ranked {
		bucket[row] = rank * c.Buckets / len(ranked)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(bucket[a], bucket[b]) })
}

// Purposes of random streams, beside the numbers of sources.
const (
	purposeMix    = 1 << 32
	purposeSplit  = 2 << 32
	purposeWindow = 3 << 32
)

// stream is the random source of one purpose.
func stream(seed, epoch, purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, epoch^purpose*0x9e3779b97f4a7c15))
}

func shuffle(rows []int, seed, epoch, purpose uint64) {
	stream(seed, epoch, purpose).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
}
