package data

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func numbered(n int) []Example {
	rows := make([]Example, n)
	for i := range rows {
		rows[i] = Example{Prompt: []int32{int32(i)}, Chosen: Completion{Tokens: make([]int32, 1+(i*7)%5)}, Difficulty: float64((i * 7) % n)}
	}
	return rows
}

func sources(order Order, weights []float64, sizes ...int) *Set {
	n := 0
	for _, s := range sizes {
		n += s
	}
	return newSet("s", numbered(n), sizes, weights, order)
}

// An epoch of concatenated sources has every row once, in an order of its own,
// whatever the other settings.
func TestEpochHasEveryRowOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := DefaultOrder()
		order.Shuffle = rapid.Bool().Draw(t, "shuffle")
		order.LengthWindow = rapid.IntRange(0, 9).Draw(t, "window")
		if rapid.Bool().Draw(t, "curriculum") {
			order.Curriculum = Curriculum{Column: "d", Order: rapid.SampledFrom([]string{EasyFirst, HardFirst}).Draw(t, "order"), Epochs: 2, Buckets: rapid.IntRange(1, 40).Draw(t, "buckets")}
		}
		a, b := rapid.IntRange(1, 12).Draw(t, "a"), rapid.IntRange(1, 12).Draw(t, "b")
		s := sources(order, []float64{1, 1}, a, b)
		epoch, seed := rapid.Uint64Range(0, 4).Draw(t, "epoch"), rapid.Uint64().Draw(t, "seed")
		got := s.Epoch(seed, epoch)
		require.Equal(t, got, s.Epoch(seed, epoch), "a pure function")
		slices.Sort(got)
		for i, x := range got {
			require.Equal(t, i, x)
		}
		require.Len(t, got, a+b)
	})
}

func TestShuffleDependsOnSeedAndEpoch(t *testing.T) {
	s := sources(DefaultOrder(), []float64{1}, 50)
	require.NotEqual(t, s.Epoch(1, 0), s.Epoch(1, 1))
	require.NotEqual(t, s.Epoch(1, 0), s.Epoch(2, 0))
	o := DefaultOrder()
	o.Shuffle = false
	for i, x := range sources(o, []float64{1}, 50).Epoch(1, 3) {
		require.Equal(t, i, x)
	}
}

// Interleaving takes rows by weight; no row comes again before all others of its
// source had their turn, over epochs too.
func TestInterleave(t *testing.T) {
	for _, c := range []struct {
		mix    string
		shares []int
	}{{MixUnder, []int{5, 10}}, {MixOver, []int{10, 20}}} {
		for _, shuffle := range []bool{true, false} {
			o := DefaultOrder()
			o.Mix, o.Shuffle = c.mix, shuffle
			s := sources(o, []float64{1, 2}, 5, 20)
			uses := make([]int, 25)
			for epoch := range uint64(8) {
				counts := []int{0, 0}
				order := s.Epoch(3, epoch)
				for _, i := range order {
					uses[i]++
					if i < 5 {
						counts[0]++
					} else {
						counts[1]++
					}
				}
				require.Equal(t, c.shares, counts, c.mix)
				if !shuffle { // dealt out evenly: never three of the heavier source's extra rows in a row
					require.NotEqual(t, []int{0, 1, 2}, order[:3])
				}
			}
			for _, part := range [][]int{uses[:5], uses[5:]} {
				require.LessOrEqual(t, slices.Max(part)-slices.Min(part), 1, "%s: %v", c.mix, part)
			}
		}
	}
}

func TestCurriculum(t *testing.T) {
	o := DefaultOrder()
	o.Curriculum = Curriculum{Column: "d", Order: EasyFirst, Epochs: 1, Buckets: 4}
	s := sources(o, []float64{1}, 40)
	bucket := func(order []int) (out []int) {
		for _, i := range order {
			out = append(out, int(s.Rows()[i].Difficulty)/10)
		}
		return out
	}
	require.True(t, slices.IsSorted(bucket(s.Epoch(1, 0))))
	require.False(t, slices.IsSorted(bucket(s.Epoch(1, 1))), "ordered epochs are over")
	o.Curriculum.Order, o.Curriculum.Buckets = HardFirst, 100
	s = sources(o, []float64{1}, 40)
	last := 1e9
	for _, i := range s.Epoch(1, 0) {
		require.Less(t, s.Rows()[i].Difficulty, last)
		last = s.Rows()[i].Difficulty
	}
	opt := options(WantDemonstrations)
	opt.Order.Curriculum.Column = "level"
	_, _, err := load(t, opt, file(t, "d.jsonl", `{"text":"a"}`))
	require.ErrorContains(t, err, `column "level" is missing`)
	set, _, err := load(t, opt, file(t, "d.jsonl", `{"text":"aa","level":2}`, `{"text":"b","level":-1.5}`))
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, set.Epoch(0, 0))
	opt.Order.Curriculum = Curriculum{Column: "level", Order: "x"}
	_, _, err = load(t, opt, "a.jsonl")
	for _, f := range []string{"order", "epochs", "buckets"} {
		require.ErrorContains(t, err, "curriculum."+f)
	}
}

func TestLengthWindowsGroupLikeLengths(t *testing.T) {
	o := DefaultOrder()
	o.LengthWindow = 10
	s := sources(o, []float64{1}, 40)
	up, down := 0, 0
	for w := range slices.Chunk(s.Epoch(1, 0), 10) {
		var n []int
		for _, i := range w {
			n = append(n, s.Rows()[i].Len())
		}
		if slices.IsSorted(n) {
			up++
		} else {
			slices.Reverse(n)
			require.True(t, slices.IsSorted(n))
			down++
		}
	}
	require.Equal(t, 4, up+down)
}

// A digest covers content and order; a split moves rows without losing any.
func TestDigestAndSplit(t *testing.T) {
	base := numbered(20)
	want := NewSet("a", base, DefaultOrder()).Digest()
	require.Equal(t, want, NewSet("b", base, DefaultOrder()).Digest(), "a name is not content")
	for name, change := range map[string]func(*Example, *Order){
		"token": func(e *Example, _ *Order) { e.Chosen.Tokens = []int32{99} }, "label": func(e *Example, _ *Order) { e.Label = true },
		"weight": func(e *Example, _ *Order) { e.Weight = 2 }, "margin": func(e *Example, _ *Order) { e.Margin = 1 },
		"weights": func(e *Example, _ *Order) { e.Chosen.Weights = make([]float32, len(e.Chosen.Tokens)) },
		"shuffle": func(_ *Example, o *Order) { o.Shuffle = false }, "window": func(_ *Example, o *Order) { o.LengthWindow = 3 },
	} {
		rows, order := slices.Clone(base), DefaultOrder()
		change(&rows[4], &order)
		require.NotEqual(t, want, NewSet("a", rows, order).Digest(), name)
	}
	require.NotEqual(t, want, NewSet("a", base[:19], DefaultOrder()).Digest())

	s := sources(DefaultOrder(), []float64{1, 1}, 20, 10)
	train, eval, err := s.Split(.2, 1)
	require.NoError(t, err)
	require.Equal(t, 24, train.Len())
	require.Equal(t, 6, eval.Len())
	seen := map[string]bool{}
	for _, part := range []*Set{train, eval} {
		for _, e := range part.Rows() {
			seen[fmt.Sprint(e.Prompt)] = true
		}
	}
	require.Len(t, seen, 30)
	for _, share := range []float64{0, 1, .001} {
		_, _, err = s.Split(share, 1)
		require.ErrorContains(t, err, "eval_split")
	}
}
