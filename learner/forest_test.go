package learner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// ids are n tokens from a on.
func ids(a, n int) (out []int32) {
	for i := range n {
		out = append(out, int32(a+i))
	}
	return out
}

// trained is a sequence whose tokens from `from` on are trained.
func trained(prompt, tokens []int32, from int) sequence {
	s := sequence{prompt: prompt, Sequence: model.Sequence{Tokens: tokens, Train: make([]bool, len(tokens))}}
	for i := from; i < len(tokens); i++ {
		s.Train[i] = true
		s.trained++
	}
	return s
}

// TestForestSharesWhatSequencesBeginWith: two tasks with one instruction, whose
// rollouts share a prompt, one of which has a rejected branch that shares a turn.
func TestForestSharesWhatSequencesBeginWith(t *testing.T) {
	system := ids(0, 100)
	task := [][]int32{slices.Concat(system, ids(1000, 20)), slices.Concat(system, ids(2000, 30))}
	turn := ids(3000, 40)
	rows := [][]sequence{
		{trained(task[0], ids(4000, 50), 0)},
		{trained(task[0], slices.Concat(turn, ids(5000, 10)), 0), trained(task[0], slices.Concat(turn, ids(6000, 15)), 40)},
		{trained(task[0], slices.Concat(ids(4000, 7), ids(8000, 5)), 0)}, // shares too little
		{trained(task[1], ids(7000, 8), 0)},
	}
	m := pack(rows, func(int) bool { return true }, 1000)
	require.Len(t, m, 1)
	require.Len(t, m[0].groups, 1)
	require.Equal(t, 100+20+50+40+10+15+12+38, m[0].tokens)
	require.Equal(t, 120+50+120+50+120+55+120+12+130+8, m[0].given)
	require.Equal(t, system, m[0].groups[0].Prompt)
	var parents, lengths []int
	for _, s := range m[0].groups[0].Members {
		parents, lengths = append(parents, s.Parent), append(lengths, len(s.Tokens))
	}
	require.Equal(t, []int{0, 1, 1, 3, 3, 1, 0}, parents)
	require.Equal(t, []int{20, 50, 40, 10, 15, 12, 38}, lengths)
	require.Equal(t, []int{0, 1, 2, 3}, m[0].rows())
	require.Equal(t, 50+40+10+15+8+12, m[0].scores())

	// Two rollouts that say the same share its scores; what they ask of them adds up.
	same := pack([][]sequence{rows[0], rows[0]}, func(int) bool { return true }, 1000)[0]
	require.Equal(t, 120+50, same.tokens)
	require.Equal(t, 50, same.scores())
	two := [][]float64{slices.Repeat([]float64{2}, 50), slices.Repeat([]float64{3}, 50)}
	require.Equal(t, slices.Repeat([]float32{5}, 50), same.gather(func(k int) []float64 { return two[k] }))
	require.InDelta(t, 2*50*1.5, same.total(slices.Repeat([]float32{1.5}, 50)), 1e-9)
}

// TestForestIsItsSequences: whatever is shared, a walk from a member to its root
// gives a sequence back, every row's marks are there once, and all of them count.
func TestForestIsItsSequences(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		valued := rapid.Bool().Draw(rt, "valued")
		var heads [][]int32 // beginnings that sequences pick up
		draw := func(n int) (out []int32) {
			for range n {
				out = append(out, int32(r.IntN(3)))
			}
			return out
		}
		rows := make([][]sequence, 1+r.IntN(8))
		for i := range rows {
			for range 1 + r.IntN(3) {
				all := draw(1 + r.IntN(40))
				if len(heads) > 0 && r.IntN(4) > 0 {
					h := heads[r.IntN(len(heads))]
					all = slices.Concat(h[:1+r.IntN(len(h))], draw(1+r.IntN(25)))
				}
				heads = append(heads, all)
				if len(all) < 2 {
					all = append(all, 1)
				}
				p := 1 + r.IntN(len(all)-1)
				s := trained(all[:p], all[p:], 0)
				for j := range s.Train {
					s.Train[j] = r.IntN(2) == 0
				}
				if valued {
					s.Value, s.Train = s.Train, make([]bool, len(s.Train))
				}
				rows[i] = append(rows[i], s)
			}
		}
		var seen []int
		for _, m := range pack(rows, func(int) bool { return true }, 1+r.IntN(200)) {
			require.Equal(rt, valued, m.valued)
			// Each score is named by what leads to it and its token.
			var names []string
			computed := 0
			for _, g := range m.groups {
				_, err := g.Branches()
				require.NoError(rt, err)
				computed += len(g.Prompt)
				before := [][]int32{g.Prompt}
				for _, s := range g.Members {
					computed += len(s.Tokens)
					all := slices.Concat(before[s.Parent], s.Tokens)
					before = append(before, all)
					marks := s.Train
					if valued {
						require.NotContains(rt, s.Train, true)
						marks = s.Value
					}
					for j, on := range marks {
						if on {
							names = append(names, string(toRunes(all[:len(before[s.Parent])+j+1])))
						}
					}
				}
			}
			require.Equal(rt, computed, m.tokens)
			require.Len(rt, names, m.scores())
			seen = append(seen, m.rows()...)
			at := map[int]int{}
			for _, s := range m.spans {
				var want []string
				for _, q := range rows[s.row] {
					for _, j := range q.marked() {
						want = append(want, string(toRunes(slices.Concat(q.prompt, q.Tokens[:j+1]))))
					}
				}
				require.Equal(rt, at[s.row], s.at, "marks in their order, none left out")
				require.Equal(rt, want[s.at:s.at+s.n], names[s.from:s.from+s.n])
				at[s.row] += s.n
			}
			for _, k := range m.rows() {
				n := 0
				for _, q := range rows[k] {
					n += len(q.marked())
				}
				require.Equal(rt, n, at[k])
			}
		}
		for i := range rows {
			require.Equal(rt, i, seen[i])
		}
	})
}

func toRunes(ids []int32) (out []rune) {
	for _, id := range ids {
		out = append(out, rune('a'+id))
	}
	return out
}
