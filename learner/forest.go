package learner

import (
	"slices"

	"github.com/skein-rl/skein/model"
)

// forest is sequences as prefix trees: whatever two of them begin with in common
// is there once. Branches of a log share their turns up to the fork, a group's
// rollouts their prompt, and prompts of one table often their instructions and
// tools.
type forest struct {
	roots  []*prefix
	leaves []leaf
	tokens int
}

// minShared is the fewest tokens for which a sequence is cut in two: below, many
// short runs cost more than they save.
const minShared = 16

// prefix is a run of tokens that sequences have in common. A root has no parent;
// no token of it is marked.
type prefix struct {
	tokens   []int32
	parent   *prefix
	children []*prefix

	marks []bool // of any sequence
	first int    // score of its first mark
}

// leaf is a sequence, which ends with a prefix. Its marks are the row's from at
// on.
type leaf struct {
	row, at int
	seq     sequence
	end     *prefix
}

// add puts in a row's sequences.
func (f *forest) add(row int, seqs []sequence) {
	at := 0
	for _, s := range seqs {
		f.insert(row, at, s)
		at += len(s.marked())
	}
}

// marks are the tokens of which the trainer gives a number: of its value head
// where the sequence asks for values.
func (s sequence) marks() (marks []bool, valued bool) {
	if s.Value != nil {
		return s.Value, true
	}
	return s.Train, false
}

// marked lists the indexes of the marked tokens.
func (s sequence) marked() (out []int) {
	marks, _ := s.marks()
	for i, on := range marks {
		if on {
			out = append(out, i)
		}
	}
	return out
}

func (f *forest) insert(row, at int, s sequence) {
	p, depth := f.root(s.prompt)
	rest := slices.Concat(s.prompt[depth:], s.Tokens)
	for len(rest) > 0 {
		var next *prefix
		n := 0
		for _, c := range p.children {
			if k := common(c.tokens, rest); k > n {
				next, n = c, k
			}
		}
		if next == nil || n < len(next.tokens) && n < minShared {
			next, n = &prefix{tokens: rest, parent: p}, len(rest)
			p.children = append(p.children, next)
			f.tokens += n
		}
		f.cut(next, n)
		p, rest = next, rest[n:]
	}
	f.leaves = append(f.leaves, leaf{row, at, s, p})
}

// first is the forest of the first n sequences.
func (f *forest) first(n int) *forest {
	var out forest
	for _, l := range f.leaves[:n] {
		out.insert(l.row, l.at, l.seq)
	}
	return &out
}

// root finds or makes the root of a sequence, a leading part of its prompt.
func (f *forest) root(prompt []int32) (root *prefix, n int) {
	for _, r := range f.roots {
		k := common(r.tokens, prompt)
		if k > n && (k == len(r.tokens) || k >= minShared) {
			root, n = r, k
		}
	}
	if root == nil {
		root, n = &prefix{tokens: prompt}, len(prompt)
		f.roots = append(f.roots, root)
		f.tokens += n
	}
	f.cut(root, n)
	return root, n
}

// cut makes p end after n tokens; the others become its only child.
func (f *forest) cut(p *prefix, n int) {
	if n == len(p.tokens) {
		return
	}
	rest := &prefix{tokens: p.tokens[n:], parent: p, children: p.children}
	for _, c := range rest.children {
		c.parent = rest
	}
	for i := range f.leaves {
		if f.leaves[i].end == p {
			f.leaves[i].end = rest
		}
	}
	p.tokens, p.children = p.tokens[:n], []*prefix{rest}
}

// common is the number of leading tokens two lists share.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// micro lays the forest out for a trainer.
func (f *forest) micro() micro {
	m := micro{tokens: f.tokens}
	for i, l := range f.leaves {
		if i == 0 || l.row != f.leaves[i-1].row {
			m.order = append(m.order, l.row)
		}
		marks, valued := l.seq.marks()
		m.valued = m.valued || valued
		m.given += len(l.seq.prompt) + len(marks)
		l.walk(func(p *prefix, from int) {
			if p.marks == nil {
				p.marks = make([]bool, len(p.tokens))
			}
			for i := range p.tokens {
				if k := from + i; k >= 0 && marks[k] {
					p.marks[i] = true
				}
			}
		})
	}
	for _, r := range f.roots {
		g := model.PrefixGroup{Prompt: r.tokens}
		for _, c := range r.children {
			m.lay(&g, c, 0)
		}
		m.groups = append(m.groups, g)
	}
	for _, l := range f.leaves {
		m.spans = append(m.spans, l.spans()...)
	}
	return m
}

// lay adds p and all below it, depth first, to what member parent-1 ends with (0
// the prompt).
func (m *micro) lay(g *model.PrefixGroup, p *prefix, parent int) {
	p.first = m.marks
	for _, on := range p.marks {
		if on {
			m.marks++
		}
	}
	s := model.Sequence{Tokens: p.tokens, Train: p.marks, Parent: parent}
	if m.valued {
		s.Train, s.Value = make([]bool, len(p.tokens)), p.marks
	}
	g.Members = append(g.Members, s)
	self := len(g.Members)
	for _, c := range p.children {
		m.lay(g, c, self)
	}
}

// walk visits the prefixes of a sequence from its root on; token i of a prefix is
// token from+i behind the prompt.
func (l leaf) walk(f func(p *prefix, from int)) {
	var path []*prefix
	for p := l.end; p != nil; p = p.parent {
		path = append(path, p)
	}
	from := -len(l.seq.prompt)
	for _, p := range slices.Backward(path) {
		f(p, from)
		from += len(p.tokens)
	}
}

// spans places the sequence's marked tokens.
func (l leaf) spans() (out []span) {
	marks, _ := l.seq.marks()
	at := l.at
	l.walk(func(p *prefix, from int) {
		score := p.first
		for i, on := range p.marks {
			if !on {
				continue
			}
			if k := from + i; k >= 0 && marks[k] {
				if n := len(out) - 1; n >= 0 && out[n].from+out[n].n == score {
					out[n].n++
				} else {
					out = append(out, span{score, l.row, at, 1})
				}
				at++
			}
			score++
		}
	})
	return out
}
