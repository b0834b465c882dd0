//go:build xla

package xla

import (
	"fmt"

	"github.com/skein-rl/skein/model"
)

// layout is the shape a training program is compiled for: P prompt rows, then G
// members of C rows each. Lengths, positions and which rows are scored are data.
// Of an empty prompt all P rows are padding, which no member's row sees.
type layout struct{ P, G, C int }

// rows is the number of rows of a batch.
func (l layout) rows() int { return l.P + l.G*l.C }

func (l layout) String() string { return fmt.Sprintf("P=%d G=%d C=%d", l.P, l.G, l.C) }

var (
	promptSizes     = []int{64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048}
	completionSizes = []int{16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}
	memberSizes     = []int{1, 2, 4, 8, 16}
)

// maxMembers is the most members of one program call; larger groups are split,
// each part with its own copy of the prompt.
const maxMembers = 16

// groupBatch is one group (or a part of a large one) laid out for a program.
type groupBatch struct {
	layout
	ids, pos []int32 // [rows]
	prompt   int32   // real prompt length, at most P
	// One entry per trained token, member by member: the row that predicts it,
	// and the token.
	scored, target []int32
	valued         []int32 // rows after which the value head is read, member by member

	dropout model.Dropout
	keys    []uint64 // [rows] of dropout, nil without
}

// makeBatches lays groups out in order. Groups without marked tokens give no
// batch. vocab bounds the token ids.
func makeBatches(cfg model.TrainerConfig, groups []model.PrefixGroup, vocab int) ([]groupBatch, error) {
	var out []groupBatch
	for g, group := range groups {
		err := cfg.CheckMarks(group)
		if err == nil {
			err = checkGroup(group, vocab)
		}
		if err != nil {
			return nil, fmt.Errorf("xla: group %d: %w", g, err)
		}
		for members := group.Members; len(members) > 0; {
			n := min(len(members), maxMembers)
			group.Members = members[:n]
			b := makeBatch(group)
			if len(b.target)+len(b.valued) > 0 {
				out = append(out, b)
			}
			members = members[n:]
		}
	}
	return out, nil
}

func checkGroup(g model.PrefixGroup, vocab int) error {
	check := func(ids []int32) error {
		for i, t := range ids {
			if t < 0 || int(t) >= vocab {
				return fmt.Errorf("token %d is %d: the vocabulary has %d", i, t, vocab)
			}
		}
		return nil
	}
	if err := check(g.Prompt); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	for m, s := range g.Members {
		if err := check(s.Tokens); err != nil {
			return fmt.Errorf("member %d: %w", m, err)
		}
	}
	return nil
}

// needed is how many tokens of a member must be computed: those before its last
// trained one, and up to its last valued one.
func needed(s model.Sequence) int {
	return max(lastMark(s.Train), lastMark(s.Value)+1, 0)
}

// lastMark is the index of the last mark, -1 without one.
func lastMark(marks []bool) int {
	for j := len(marks) - 1; j >= 0; j-- {
		if marks[j] {
			return j
		}
	}
	return -1
}

func makeBatch(g model.PrefixGroup) groupBatch {
	prompt, members := g.Prompt, g.Members
	promptKeys, memberKeys := g.DropoutRows()
	longest := 0
	for _, s := range members {
		longest = max(longest, needed(s))
	}
	b := groupBatch{prompt: int32(len(prompt)), layout: layout{
		P: bucket(len(prompt), promptSizes),
		G: bucket(len(members), memberSizes),
		C: bucket(longest, completionSizes),
	}}
	b.ids, b.pos = make([]int32, b.rows()), make([]int32, b.rows())
	copy(b.ids, prompt)
	if g.Dropout.Rate > 0 {
		b.dropout, b.keys = g.Dropout, make([]uint64, b.rows())
		copy(b.keys, promptKeys)
	}
	for i := range b.P {
		b.pos[i] = int32(i)
	}
	for m := range b.G {
		first := b.P + m*b.C
		for j := range b.C {
			b.pos[first+j] = b.prompt + int32(j)
		}
		if m >= len(members) {
			continue
		}
		s := members[m]
		copy(b.ids[first:first+needed(s)], s.Tokens)
		if b.keys != nil {
			copy(b.keys[first:first+needed(s)], memberKeys[m])
		}
		for j, on := range s.Train {
			if !on {
				continue
			}
			row := int32(first + j - 1)
			if j == 0 {
				row = b.prompt - 1
			}
			b.scored, b.target = append(b.scored, row), append(b.target, s.Tokens[j])
		}
		for j, on := range s.Value {
			if on {
				b.valued = append(b.valued, int32(first+j))
			}
		}
	}
	return b
}
