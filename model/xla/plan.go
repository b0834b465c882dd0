//go:build xla

package xla

import (
	"cmp"
	"slices"

	"github.com/skein-rl/skein/model"
)

// Where a tree of sequences is cut. Rows of a block attend to the whole block,
// so one block of a bushy tree computes many scores that no row wants, while a
// tree whose branches are batches of their own computes what is above them once
// for each. The planner takes what costs less.

// planner cuts groups into batches.
type planner struct {
	shape   shape
	dropout model.Dropout // of the group in hand
	out     []groupBatch
	scores  int // given places so far
	values  int
}

// node is the prompt or a member of a group: what of it must be computed.
type node struct {
	tokens   []int32
	keys     []uint64 // of dropout
	pos      int
	children []*node
	rows     int // of it and all below
	cut      bool
	scored   []mark // until a batch has them
	valued   []mark
}

// mark is a marked token of a node; at is its place among all scores or values.
type mark struct {
	token int
	id    int32
	at    int
}

// add cuts one group.
func (p *planner) add(g model.PrefixGroup) error {
	branches, err := g.Branches()
	if err != nil {
		return err
	}
	promptKeys, memberKeys := g.DropoutRows()
	p.dropout = g.Dropout
	nodes := []*node{{tokens: g.Prompt, keys: promptKeys, rows: len(g.Prompt)}}
	for i, m := range g.Members {
		n := &node{tokens: m.Tokens[:branches[i].Rows], pos: branches[i].Pos}
		if memberKeys != nil {
			n.keys = memberKeys[i]
		}
		for j, on := range m.Train {
			if on {
				n.scored = append(n.scored, mark{j, m.Tokens[j], p.scores})
				p.scores++
			}
		}
		for j, on := range m.Value {
			if on {
				n.valued = append(n.valued, mark{j, m.Tokens[j], p.values})
				p.values++
			}
		}
		nodes = append(nodes, n)
		nodes[m.Parent].children = append(nodes[m.Parent].children, n)
	}
	for i, n := range slices.Backward(nodes) {
		n.rows = len(n.tokens)
		for _, c := range n.children {
			n.rows += c.rows
		}
		n.children = slices.DeleteFunc(n.children, func(c *node) bool { return c.rows == 0 && !c.marked() })
		if i == 0 {
			p.decide(n, 0)
		}
	}
	p.emit(nil, nodes[0])
	return nil
}

// marked says whether any token of n or below it is.
func (n *node) marked() bool {
	return len(n.scored)+len(n.valued) > 0 || slices.ContainsFunc(n.children, (*node).marked)
}

// decide chooses for n, with so many tokens above it, and for what it goes on
// with, and returns the cost. A node that is cut gives those of its children that
// go on themselves batches of their own.
func (p *planner) decide(n *node, above int) float64 {
	above += len(n.tokens)
	whole := p.cost(above, n.children)
	leaves, inner := n.parts()
	if len(inner) == 0 {
		return whole
	}
	apart := 0.0
	if len(leaves) > 0 {
		apart = p.cost(above, leaves)
	}
	for _, c := range inner {
		apart += p.decide(c, above)
	}
	n.cut = apart < whole
	return min(apart, whole)
}

// parts are the children that end and those that go on.
func (n *node) parts() (leaves, inner []*node) {
	for _, c := range n.children {
		if len(c.children) == 0 {
			leaves = append(leaves, c)
		} else {
			inner = append(inner, c)
		}
	}
	return leaves, inner
}

// emit makes the batches of n behind a path.
func (p *planner) emit(path []*node, n *node) {
	path = append(slices.Clone(path), n)
	trees := n.children
	var apart []*node
	if n.cut {
		trees, apart = n.parts()
	}
	if len(trees) > 0 || len(apart) == 0 {
		blocks := fill(trees)
		for lo := 0; lo == 0 || lo < len(blocks); lo += maxBlocks {
			p.batch(path, blocks[lo:min(len(blocks), lo+maxBlocks)])
		}
	}
	for _, c := range apart {
		p.emit(path, c)
	}
}

// scoreCost is how much more a product of attention costs than one of a layer's
// matrices: its operands are small, and scores are read and written several times.
const scoreCost = 4

// cost estimates a layer's work on trees behind so many tokens, in multiply-adds.
func (p *planner) cost(prompt int, trees []*node) float64 {
	blocks := fill(trees)
	s, sum := p.shape, 0.0
	weights := s.hidden*(s.qkvDim()+s.qDim()) + 3*s.hidden*s.inter
	for lo := 0; lo == 0 || lo < len(blocks); lo += maxBlocks {
		part := blocks[lo:min(len(blocks), lo+maxBlocks)]
		l := layoutOf(prompt, len(part), longest(part))
		sum += float64(l.rows())*float64(weights) + scoreCost*2*float64(s.qDim())*float64(l.P*l.P+l.G*l.C*(l.P+l.C))
	}
	return sum
}

// fill puts trees into blocks no larger than the largest tree needs, larger ones
// first. Trees without rows come into the first block.
func fill(trees []*node) (blocks [][]*node) {
	order := slices.Clone(trees)
	slices.SortStableFunc(order, func(a, b *node) int { return cmp.Compare(b.rows, a.rows) })
	if len(order) == 0 {
		return nil
	}
	size := bucket(order[0].rows, completionSizes)
	var used []int
	for _, t := range order {
		k := slices.IndexFunc(used, func(n int) bool { return n+t.rows <= size })
		if k < 0 {
			k = len(used)
			used, blocks = append(used, 0), append(blocks, nil)
		}
		used[k] += t.rows
		blocks[k] = append(blocks[k], t)
	}
	return blocks
}

// longest is the most rows of a block.
func longest(blocks [][]*node) (most int) {
	for _, trees := range blocks {
		n := 0
		for _, t := range trees {
			n += t.rows
		}
		most = max(most, n)
	}
	return most
}
