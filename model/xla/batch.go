//go:build xla

package xla

import (
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
)

// layout is the shape a training program is compiled for: P prompt rows, then G
// blocks of C rows each. A block holds one or several trees of sequences that go
// on from the prompt, depth first. Lengths, positions, which rows of a block see
// each other and which are scored are data. Of an empty prompt all P rows are
// padding, which no other row sees.
type layout struct{ P, G, C int }

// rows is the number of rows of a batch.
func (l layout) rows() int { return l.P + l.G*l.C }

func (l layout) String() string { return fmt.Sprintf("P=%d G=%d C=%d", l.P, l.G, l.C) }

var (
	promptSizes     = []int{64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048}
	completionSizes = []int{16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}
	blockSizes      = []int{1, 2, 4, 8, 16}
)

// maxBlocks is the most blocks of one program call; more go to further calls,
// each with its own copy of the prompt.
const maxBlocks = 16

// layoutOf is the layout for a prompt and blocks, the longest of so many rows.
func layoutOf(prompt, blocks, longest int) layout {
	return layout{P: bucket(prompt, promptSizes), G: bucket(blocks, blockSizes), C: bucket(longest, completionSizes)}
}

// groupBatch is a group, or a part of one, laid out for a program.
type groupBatch struct {
	layout
	ids, pos []int32 // [rows]
	until    []int32 // [G*C] the row of its block from which on a row is not seen
	prompt   int32   // real prompt length, at most P
	// One entry per trained token: the row that predicts it, the token, and its
	// place among all scores.
	scored, target, at []int32
	// Rows after which the value head is read, and their places among all values.
	valued, valuedAt []int32

	dropout model.Dropout
	keys    []uint64 // [rows] of dropout, nil without
}

// makeBatches lays groups out in order. Groups without marked tokens give no
// batch.
func makeBatches(cfg model.TrainerConfig, groups []model.PrefixGroup, s shape) ([]groupBatch, error) {
	p := planner{shape: s}
	for g, group := range groups {
		err := cfg.CheckMarks(group)
		if err == nil {
			err = checkGroup(group, s.vocab)
		}
		if err == nil {
			err = p.add(group)
		}
		if err != nil {
			return nil, fmt.Errorf("xla: group %d: %w", g, err)
		}
	}
	return p.out, nil
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

// batch lays out blocks of trees behind the tokens of a path, which ends with
// what the trees go on from.
func (p *planner) batch(path []*node, blocks [][]*node) {
	prompt := 0
	for _, n := range path {
		prompt += len(n.tokens)
	}
	b := &groupBatch{prompt: int32(prompt), layout: layoutOf(prompt, len(blocks), longest(blocks)), dropout: p.dropout}
	b.ids, b.pos, b.until = make([]int32, b.rows()), make([]int32, b.rows()), make([]int32, b.G*b.C)
	if p.dropout.Rate > 0 {
		b.keys = make([]uint64, b.rows())
	}
	for i := range b.pos {
		b.pos[i] = int32(i)
		if i >= b.P {
			b.pos[i], b.until[i-b.P] = b.prompt, int32(b.C) // padding, unless overwritten
		}
	}
	last := -1 // row that predicts the next token
	row := 0
	for _, n := range path {
		last = b.place(n, row, last)
		row += len(n.tokens)
	}
	for g, trees := range blocks {
		row := b.P + g*b.C
		for _, t := range trees {
			row = b.tree(t, row, last, b.P+g*b.C)
		}
	}
	if len(b.scored)+len(b.valued) > 0 {
		b.sort()
		p.out = append(p.out, *b)
	}
}

// tree places n and all below it from a row on; it returns the next row.
func (b *groupBatch) tree(n *node, row, last, block int) int {
	first := row
	last = b.place(n, row, last)
	row += len(n.tokens)
	for _, c := range n.children {
		row = b.tree(c, row, last, block)
	}
	for i := range n.tokens {
		b.until[first-b.P+i] = int32(row - block)
	}
	return row
}

// place writes n's tokens from a row on; last predicts the first of them. It
// returns the row that predicts what comes next. The marks of a node that stands
// in several batches are the first one's.
func (b *groupBatch) place(n *node, row, last int) int {
	copy(b.ids[row:], n.tokens)
	for i := range n.tokens {
		b.pos[row+i] = int32(n.pos + i)
	}
	if b.keys != nil {
		copy(b.keys[row:row+len(n.tokens)], n.keys)
	}
	for _, m := range n.scored {
		from := row + m.token - 1
		if m.token == 0 {
			from = last
		}
		b.scored, b.target, b.at = append(b.scored, int32(from)), append(b.target, m.id), append(b.at, int32(m.at))
	}
	for _, m := range n.valued {
		b.valued, b.valuedAt = append(b.valued, int32(row+m.token)), append(b.valuedAt, int32(m.at))
	}
	n.scored, n.valued = nil, nil
	if len(n.tokens) == 0 {
		return last
	}
	return row + len(n.tokens) - 1
}

// sort puts the marks in the order of their places.
func (b *groupBatch) sort() {
	by := func(at []int32, columns ...[]int32) {
		order := make([]int, len(at))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(i, j int) int { return int(at[i] - at[j]) })
		for _, c := range append(columns, at) {
			old := slices.Clone(c)
			for i, j := range order {
				c[i] = old[j]
			}
		}
	}
	by(b.at, b.scored, b.target)
	by(b.valuedAt, b.valued)
}

// places are the inputs of layers that say which rows see each other: positions
// and ends of the members' rows, [2, G*C].
func (b *groupBatch) places() []int32 { return append(slices.Clone(b.pos[b.P:]), b.until...) }
