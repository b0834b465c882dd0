//go:build xla

package xla

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every trained token appears once, with the row that predicts it: the row of the
// token before it, which sees exactly what comes before it in its sequence. Trees
// that are cut give the same.
func TestBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const vocab = 50
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		ids := func(n int) []int32 { return randomTokens(r, r.IntN(n), vocab) }
		var groups []model.PrefixGroup
		want := [][]int32{} // each trained token behind all before it
		for range rapid.IntRange(0, 3).Draw(t, "groups") {
			g := model.PrefixGroup{Prompt: ids(70)}
			before, path := [][]int32{g.Prompt}, []int{0}
			for i := range rapid.IntRange(0, 40).Draw(t, "members") {
				path = path[:1+min(r.IntN(4), r.IntN(len(path)))]
				s := model.Sequence{Tokens: ids(40), Parent: path[len(path)-1]}
				all := slices.Concat(before[s.Parent], s.Tokens)
				for j := range s.Tokens {
					at := len(before[s.Parent]) + j
					s.Train = append(s.Train, at > 0 && r.IntN(3) > 0)
					if s.Train[j] {
						want = append(want, all[:at+1])
					}
				}
				g.Members, before, path = append(g.Members, s), append(before, all), append(path, i+1)
			}
			groups = append(groups, g)
		}
		s := shape{vocab: vocab, heads: 1, headDim: rapid.SampledFrom([]int{1, 100}).Draw(t, "attention"), hidden: 10, inter: rapid.SampledFrom([]int{1, 1000}).Draw(t, "inter"), kv: 1}
		batches, err := makeBatches(model.TrainerConfig{}, groups, s)
		require.NoError(t, err)
		got := make([][]int32, len(want))
		for _, b := range batches {
			require.NotEmpty(t, b.scored)
			require.Len(t, b.ids, b.rows())
			require.Len(t, b.pos, b.rows())
			require.Len(t, b.places(), 2*b.G*b.C)
			require.LessOrEqual(t, int(b.prompt), b.P)
			require.True(t, slices.IsSorted(b.at))
			for i, row := range b.scored {
				require.Nil(t, got[b.at[i]], "scored twice")
				var seen []int32
				for j := range b.prompt {
					if row >= int32(b.P) || j <= row {
						seen = append(seen, b.ids[j])
						require.Equal(t, j, b.pos[j])
					}
				}
				if at := int(row) - b.P; at >= 0 {
					first := at - at%b.C
					for j := first; j <= at; j++ {
						if int32(at-first) < b.until[j] {
							require.Equal(t, int32(len(seen)), b.pos[b.P+j])
							seen = append(seen, b.ids[b.P+j])
						}
					}
				}
				got[b.at[i]] = append(seen, b.target[i])
			}
		}
		require.Equal(t, want, got)
	})
}

func TestBucket(t *testing.T) {
	for _, c := range []struct{ n, want int }{{0, 16}, {16, 16}, {17, 32}, {300, 384}, {1024, 1024}, {1025, 1280}} {
		require.Equal(t, c.want, bucket(c.n, completionSizes))
	}
}
