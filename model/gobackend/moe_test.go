package gobackend

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestTopK: the largest, of equals the first, in ascending order of index.
func TestTopK(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 5), func(i int) float32 { return float32(i) }), 1, 20).Draw(rt, "p")
		k := rapid.IntRange(1, len(p)).Draw(rt, "k")
		order := make([]int, len(p))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
		want := slices.Sorted(slices.Values(order[:k]))
		require.Equal(t, want, topK(make([]int, k), p))
	})
}

// TestRouteOrder: each pair stands in its expert's range, rows ascending, and
// place finds it again.
func TestRouteOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		experts := rapid.IntRange(1, 9).Draw(rt, "experts")
		k := rapid.IntRange(1, experts).Draw(rt, "k")
		var r route
		for range 2 { // the second time with what the first left
			r.expert = nil
			for range rapid.IntRange(0, 12).Draw(rt, "rows") {
				chosen := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
					for i := range experts {
						if !yield(i) {
							return
						}
					}
				})).Draw(rt, "chosen")[:k]
				r.expert = append(r.expert, slices.Sorted(slices.Values(chosen))...)
			}
			r.sort(experts, k)
			require.Len(t, r.pairs, len(r.expert))
			require.Equal(t, []int{0, len(r.pairs)}, []int{r.start[0], r.start[experts]})
			for i, x := range r.expert {
				at := r.place[i]
				require.Equal(t, pair{i / k, i % k}, r.pairs[at])
				require.True(t, r.start[x] <= at && at < r.start[x+1])
			}
			seen := 0
			r.each(func(e, first, pairs int) {
				seen += pairs
				rows := r.pairs[first : first+pairs]
				require.True(t, slices.IsSortedFunc(rows, func(a, b pair) int { return a.row - b.row }))
			})
			require.Equal(t, len(r.pairs), seen)
		}
	})
}
