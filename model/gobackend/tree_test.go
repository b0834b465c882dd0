package gobackend

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// randomTree is a prompt with members on members; some are empty.
func randomTree(r *rand.Rand, c model.Config, prompt, members, length int) model.PrefixGroup {
	g := model.PrefixGroup{Prompt: randomIDs(r, c, 1+r.IntN(prompt))}
	path := []int{0}
	for i := range members {
		path = path[:1+r.IntN(len(path))]
		s := model.Sequence{Tokens: randomIDs(r, c, r.IntN(length+1)), Parent: path[len(path)-1]}
		for range s.Tokens {
			s.Train = append(s.Train, r.IntN(3) > 0)
		}
		g.Members = append(g.Members, s)
		path = append(path, i+1)
	}
	return g
}

// unshared gives every member its own copy of what it goes on from.
func unshared(g model.PrefixGroup) (out []model.PrefixGroup) {
	before := [][]int32{g.Prompt}
	for _, m := range g.Members {
		prompt := before[m.Parent]
		before = append(before, append(append([]int32(nil), prompt...), m.Tokens...))
		m.Parent = 0
		out = append(out, model.PrefixGroup{Prompt: prompt, Members: []model.Sequence{m}})
	}
	return out
}

// TestTreesEqualTheirSequences: a tree of sequences gives the scores of its
// sequences one by one, bit for bit, and their gradient.
func TestTreesEqualTheirSequences(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) {
			m := randomModel(t, c, 61)
			lora := everyLoRA(c)
			params := randomAdapter(t, m, lora, 62).Params
			tr := newTrainer(t, newBackend(t, m, Options{}), model.TrainerConfig{LoRA: lora}, params)
			rapid.Check(t, func(rt *rapid.T) {
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 63))
				g := randomTree(r, c, 60, rapid.IntRange(1, 7).Draw(rt, "members"), rapid.IntRange(1, 20).Draw(rt, "length"))
				got, scores := gradient(t, tr, [][]model.PrefixGroup{{g}}, 0.9)
				var alone [][]model.PrefixGroup
				for _, g := range unshared(g) {
					alone = append(alone, []model.PrefixGroup{g})
				}
				want, each := gradient(t, tr, alone, 0.9)
				require.Equal(rt, each.LogProbs, scores.LogProbs)
				require.Equal(rt, each.Entropy, scores.Entropy)
				require.Less(rt, relative(want, got), 2e-5)
			})
		})
	}
}

// TestTreesComputeSharedTokensOnce counts rows.
func TestTreesComputeSharedTokensOnce(t *testing.T) {
	c := tinyConfig()
	on := func(n int) []bool {
		b := make([]bool, n)
		for i := range b {
			b[i] = true
		}
		return b
	}
	member := func(parent, n int) model.Sequence {
		return model.Sequence{Tokens: make([]int32, n), Train: on(n), Parent: parent}
	}
	g := model.PrefixGroup{Prompt: make([]int32, 10), Members: []model.Sequence{member(0, 5), member(1, 4), member(1, 3), member(0, 6)}}
	b, err := pack(c, model.TrainerConfig{}, []model.PrefixGroup{g})
	require.NoError(t, err)
	require.Len(t, b.tokens, 10+5+3+2+5) // the last token of a leaf is predicted, never read
	require.Equal(t, []int{9, 10, 11, 12, 13, 14, 15, 16, 17, 14, 18, 19, 9, 20, 21, 22, 23, 24}, b.rows)
	require.Equal(t, []int{15, 16}, b.pos[18:20])

	g.Members[3].Parent = 2 // a member that member 2 does not go on from
	_, err = pack(c, model.TrainerConfig{}, []model.PrefixGroup{g})
	require.ErrorContains(t, err, "member 3: parent is 2, want one of [0 1 3]")
}

// TestPartsOfAGroup: members are dealt to a bounded number of tasks in order, trees
// whole.
func TestPartsOfAGroup(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 64))
		c := tinyConfig()
		c.MaxPositionEmbeddings = 1 << 20
		g := randomTree(r, c, 60, rapid.IntRange(1, 40).Draw(rt, "members"), rapid.IntRange(1, 200).Draw(rt, "length"))
		b, err := pack(c, model.TrainerConfig{}, []model.PrefixGroup{g})
		require.NoError(rt, err)
		var members []sequence
		parts := b.parts()
		for i, p := range parts {
			require.Equal(rt, i == 0, p.first)
			require.Equal(rt, len(parts), p.of)
			require.Equal(rt, p.prompt, p.members[0].pos)
			members = append(members, p.members...)
		}
		require.LessOrEqual(rt, len(parts), maxParts+1)
		if len(b.groups) > 0 {
			require.Equal(rt, b.groups[0].members, members)
		}
	})
}
