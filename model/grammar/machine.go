package grammar

import (
	"encoding/binary"
	"errors"
	"slices"
)

const (
	maxDepth  = 512     // frames on a stack
	maxStacks = 1 << 12 // stacks of one set
	maxNodes  = 1 << 20 // of one machine
)

// errAmbiguous marks text that a grammar reads in too many ways at once.
var errAmbiguous = errors.New("grammar: the text so far can be read in too many ways; make the grammar less ambiguous")

// frame is a place in the automaton with what lies below it on the stack. On a
// stack it says where to return to; at its top, where the next byte is taken.
// count is the loop's or object's.
type frame struct {
	state  int32
	parent int32 // node below; 0 = the bottom
	count  uint64
}

// set is all the stacks the text so far may have led to.
type set struct {
	tops []int32 // nodes at byte states, sorted
	done bool    // the bottom was reached: the text is complete
	next *[256]int32
}

const dead = -1

// machine simulates a grammar. Stacks share their lower parts as nodes; sets
// are numbered and know where each byte leads once asked.
type machine struct {
	g     *Grammar
	nodes []frame // node 0 is the bottom
	depth []int16
	index map[frame]int32
	sets  []set
	names map[string]int32
	seen  map[frame]bool
	todo  []frame
}

func newMachine(g *Grammar) *machine {
	return &machine{g: g, nodes: make([]frame, 1), depth: make([]int16, 1), index: map[frame]int32{}, names: map[string]int32{}, seen: map[frame]bool{}}
}

// push gives the node of a frame; ok is false when the stack is too deep.
func (m *machine) push(f frame) (int32, bool) {
	if n, ok := m.index[f]; ok {
		return n, true
	}
	d := m.depth[f.parent] + 1
	if d > maxDepth || len(m.nodes) >= maxNodes {
		return 0, false
	}
	n := int32(len(m.nodes))
	m.nodes, m.depth = append(m.nodes, f), append(m.depth, d)
	m.index[f] = n
	return n, true
}

// start is the set before any text.
func (m *machine) start() (int32, error) {
	return m.close([]frame{{state: m.g.starts[0]}})
}

// returned is the set after what lies on node finished.
func (m *machine) returned(node int32) (int32, error) {
	if node == 0 {
		return m.close([]frame{{state: retState}})
	}
	return m.close([]frame{m.nodes[node]})
}

// step is the set after one more byte.
func (m *machine) step(from int32, b byte) (int32, error) {
	s := &m.sets[from]
	if s.next != nil && s.next[b] != 0 {
		return s.next[b] - 2, nil
	}
	m.todo = m.todo[:0]
	for _, n := range s.tops {
		f := m.nodes[n]
		if st := &m.g.states[f.state]; st.class.has(b) {
			m.todo = append(m.todo, frame{state: st.next, parent: f.parent})
		}
	}
	to := int32(dead)
	if len(m.todo) > 0 {
		var err error
		if to, err = m.close(m.todo); err != nil {
			return dead, err
		}
	}
	s = &m.sets[from]
	if s.next == nil {
		s.next = new([256]int32)
	}
	s.next[b] = to + 2
	return to, nil
}

// close follows everything that takes no byte and numbers the set.
func (m *machine) close(todo []frame) (int32, error) {
	clear(m.seen)
	var s set
	add := func(f frame) {
		if !m.seen[f] {
			m.seen[f] = true
			todo = append(todo, f)
		}
	}
	enter := func(start int32, back frame) {
		if back.count == 0 && m.g.states[back.state].op == opRet {
			add(frame{state: start, parent: back.parent}) // a tail call
		} else if n, ok := m.push(back); ok {
			add(frame{state: start, parent: n})
		}
	}
	for len(todo) > 0 {
		f := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(m.seen) > maxStacks*4 || len(s.tops) > maxStacks {
			return dead, errAmbiguous
		}
		st := &m.g.states[f.state]
		switch st.op {
		case opByte:
			if n, ok := m.push(frame{state: f.state, parent: f.parent}); ok {
				s.tops = append(s.tops, n)
			}
		case opSplit:
			for _, o := range st.outs {
				add(frame{state: o, parent: f.parent})
			}
		case opCall:
			enter(m.g.starts[st.rule], frame{state: st.next, parent: f.parent})
		case opRet:
			if f.parent == 0 {
				s.done = true
			} else {
				add(m.nodes[f.parent])
			}
		case opLoop:
			k := int64(f.count)
			if k >= st.min {
				add(frame{state: st.next, parent: f.parent})
			}
			if st.max == unlimited {
				enter(st.body, frame{state: f.state, parent: f.parent, count: uint64(min(k+1, max(st.min, 1)))})
			} else if k < st.max {
				enter(st.body, frame{state: f.state, parent: f.parent, count: uint64(k + 1)})
			}
		case opObject:
			if f.count&st.required == st.required {
				add(frame{state: st.next, parent: f.parent})
			}
			outs, extra := st.outs, st.extra
			if f.count != 0 {
				outs, extra = st.seps, st.extraSep
			}
			for i, o := range outs {
				if f.count>>i&1 == 0 {
					enter(o, frame{state: f.state, parent: f.parent, count: f.count | 1<<i})
				}
			}
			if extra >= 0 {
				enter(extra, frame{state: f.state, parent: f.parent, count: f.count | 1<<63})
			}
		}
	}
	m.todo = todo[:0]
	if len(s.tops) == 0 && !s.done {
		return dead, nil
	}
	slices.Sort(s.tops)
	s.tops = slices.Compact(s.tops)
	return m.number(s), nil
}

func (m *machine) number(s set) int32 {
	key := make([]byte, 1, 1+4*len(s.tops))
	if s.done {
		key[0] = 1
	}
	for _, n := range s.tops {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	if id, ok := m.names[string(key)]; ok {
		return id
	}
	id := int32(len(m.sets))
	m.sets = append(m.sets, s)
	m.names[string(key)] = id
	return id
}
