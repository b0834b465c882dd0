//go:build xla

package xla

import (
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every trained token appears once, in order, with the row that predicts it:
// the row of the token before it, in its own member or at the end of the prompt.
func TestBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const vocab = 50
		ids := rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 0, 70)
		var groups []model.PrefixGroup
		type token struct{ id, before, position int32 }
		var want []token
		for range rapid.IntRange(0, 3).Draw(t, "groups") {
			g := model.PrefixGroup{Prompt: ids.Draw(t, "prompt")}
			for range rapid.IntRange(0, 20).Draw(t, "members") {
				s := model.Sequence{Tokens: ids.Draw(t, "tokens")}
				s.Train = rapid.SliceOfN(rapid.Bool(), len(s.Tokens), len(s.Tokens)).Draw(t, "train")
				if len(g.Prompt) == 0 && len(s.Train) > 0 {
					s.Train[0] = false // nothing predicts it
				}
				all := append(append([]int32{}, g.Prompt...), s.Tokens...)
				for j, on := range s.Train {
					if at := len(g.Prompt) + j; on {
						want = append(want, token{s.Tokens[j], all[at-1], int32(at - 1)})
					}
				}
				g.Members = append(g.Members, s)
			}
			groups = append(groups, g)
		}
		batches, err := makeBatches(model.TrainerConfig{}, groups, vocab)
		require.NoError(t, err)
		var got []token
		for _, b := range batches {
			require.NotEmpty(t, b.scored)
			require.Len(t, b.ids, b.rows())
			require.Len(t, b.pos, b.rows())
			require.LessOrEqual(t, int(b.prompt), b.P)
			for i, row := range b.scored {
				got = append(got, token{b.target[i], b.ids[row], b.pos[row]})
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
