package grammar

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

const (
	maxMasks     = 1 << 12 // whole masks kept by a program
	maxLocalSets = 1 << 16 // sets of the shared machine before it is begun anew
)

// Program is a grammar joined with a vocabulary: what matchers share. Safe for
// concurrent use.
type Program struct {
	g     *Grammar
	vocab *Vocabulary

	mu    sync.Mutex
	local *machine
	tops  map[string]*topMask
	masks map[string][]uint64 // of whole sets of stacks
}

// topMask is what the top of a stack alone decides: the tokens that stay above
// its base or end exactly where it finishes, and the trie nodes at which it
// finishes inside longer tokens.
type topMask struct {
	mask  []uint64
	exits []int32
}

// NewProgram joins a grammar with a vocabulary.
func NewProgram(g *Grammar, v *Vocabulary) *Program {
	return &Program{g: g, vocab: v, local: newMachine(g), tops: map[string]*topMask{}, masks: map[string][]uint64{}}
}

// Start begins a sequence. The error says that the grammar is too ambiguous.
func (p *Program) Start() (*Matcher, error) {
	m := &Matcher{p: p, m: newMachine(p.g)}
	var err error
	if m.at, err = m.m.start(); err != nil {
		return nil, err
	}
	if m.at == dead {
		return nil, fmt.Errorf("%w: nothing matches it", ErrGrammar)
	}
	return m, nil
}

// Matcher is one sequence being written under a grammar. It implements
// model.Constraint; one goroutine uses it at a time.
type Matcher struct {
	p     *Program
	m     *machine
	at    int32
	ended bool
	sets  []int32 // scratch of walk
}

// Complete reports that the text so far is a whole text of the grammar.
func (m *Matcher) Complete() bool { return m.m.sets[m.at].done }

// Ended reports that a stop token was accepted.
func (m *Matcher) Ended() bool { return m.ended }

// Allow clears the bits of tokens that may not come next. Stop tokens are left
// only where the text is complete.
func (m *Matcher) Allow(mask []uint64) {
	if m.ended {
		clear(mask)
		return
	}
	allowed := m.allowed()
	n := min(len(mask), len(allowed))
	for i := range n {
		mask[i] &= allowed[i]
	}
	clear(mask[n:])
}

// Accept moves on by a token. An error leaves the matcher where it was.
func (m *Matcher) Accept(id int32) error {
	v := m.p.vocab
	switch {
	case m.ended:
		return fmt.Errorf("grammar: token %d follows the end", id)
	case slices.Contains(v.stop, id):
		if !m.Complete() {
			return fmt.Errorf("grammar: stop token %d ends an incomplete text", id)
		}
		m.ended = true
		return nil
	case id < 0 || int(id) >= v.size || len(v.bytes[id]) == 0:
		return fmt.Errorf("grammar: token %d cannot be written here", id)
	}
	at, err := m.feed(m.at, v.bytes[id])
	if err != nil {
		return err
	}
	if at == dead {
		return fmt.Errorf("grammar: token %d (%q) is not allowed here", id, v.bytes[id])
	}
	m.at = at
	m.trim()
	return nil
}

// Matches reports whether the grammar takes a whole text.
func (g *Grammar) Matches(text string) (bool, error) {
	m := newMachine(g)
	at, err := m.start()
	for i := 0; i < len(text) && err == nil && at != dead; i++ {
		at, err = m.step(at, text[i])
	}
	return err == nil && at != dead && m.sets[at].done, err
}

func (m *Matcher) feed(at int32, text []byte) (int32, error) {
	var err error
	for _, b := range text {
		if at, err = m.m.step(at, b); err != nil || at == dead {
			return dead, err
		}
	}
	return at, nil
}

// trim copies the current stacks into a fresh machine when the old one has
// grown with the text.
func (m *Matcher) trim() {
	if len(m.m.nodes) < maxNodes/16 && len(m.m.sets) < 1<<14 {
		return
	}
	fresh := newMachine(m.p.g)
	old := m.m.sets[m.at]
	s := set{done: old.done}
	for _, n := range old.tops {
		s.tops = append(s.tops, fresh.copy(m.m, n))
	}
	slices.Sort(s.tops)
	m.at = fresh.number(s)
	m.m = fresh
}

func (m *machine) copy(from *machine, n int32) int32 {
	if n == 0 {
		return 0
	}
	f := from.nodes[n]
	f.parent = m.copy(from, f.parent)
	n, _ = m.push(f)
	return n
}

// allowed is the mask of the current set.
func (m *Matcher) allowed() []uint64 {
	key := m.key()
	p := m.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if mask, ok := p.masks[key]; ok {
		return mask
	}
	mask := make([]uint64, p.vocab.Words())
	for _, top := range m.m.sets[m.at].tops {
		m.merge(top, mask)
	}
	if m.Complete() {
		for _, id := range p.vocab.stop {
			mask[id/64] |= 1 << (id % 64)
		}
	}
	if len(p.masks) >= maxMasks {
		clear(p.masks)
	}
	p.masks[key] = mask
	return mask
}

// key names the current set by its stacks' contents.
func (m *Matcher) key() string {
	s := m.m.sets[m.at]
	key := []byte{0}
	if s.done {
		key[0] = 1
	}
	for _, n := range s.tops {
		for ; n != 0; n = m.m.nodes[n].parent {
			key = m.p.appendFrame(key, m.m.nodes[n])
		}
		key = append(key, 0xff, 0xff, 0xff, 0xff)
	}
	return string(key)
}

// appendFrame writes a frame with a count that stands for all that behave alike
// over the length of a token.
func (p *Program) appendFrame(key []byte, f frame) []byte {
	key = binary.LittleEndian.AppendUint32(key, uint32(f.state))
	return binary.LittleEndian.AppendUint64(key, p.likeCount(f))
}

func (p *Program) likeCount(f frame) uint64 {
	st := &p.g.states[f.state]
	k, far := int64(f.count), int64(p.vocab.max)+1
	switch {
	case st.op != opLoop || st.max == unlimited && st.min <= far:
	case k+far < st.min:
		return 1 // far from the least
	case k >= st.min && (st.max == unlimited || k+far < st.max):
		if st.max == unlimited {
			return uint64(st.min)
		}
		if st.min+far < st.max {
			return uint64(max(st.min, 1)) // far from the most
		}
	}
	return f.count
}

// merge adds the tokens that one stack allows.
func (m *Matcher) merge(top int32, mask []uint64) {
	p := m.p
	// The base lies below the loops the top is in, so that a string's next
	// character does not leave it.
	chain := []frame{m.m.nodes[top]}
	rest := m.m.nodes[top].parent
	for rest != 0 && p.g.states[m.m.nodes[rest].state].op == opLoop {
		chain = append(chain, m.m.nodes[rest])
		rest = m.m.nodes[rest].parent
	}
	local, err := p.top(chain)
	if err != nil {
		return // too ambiguous: this stack allows nothing
	}
	for i, w := range local.mask {
		mask[i] |= w
	}
	if len(local.exits) == 0 {
		return
	}
	after, err := m.m.returned(rest)
	if err != nil || after == dead {
		return
	}
	for _, n := range local.exits {
		m.sets, _ = walk(m.m, p.vocab, after, n+1, p.vocab.nodes[n].end, m.sets, func(node int32, _ int32) {
			p.vocab.mark(node, mask)
		})
	}
}

func (v *Vocabulary) mark(node int32, mask []uint64) {
	for _, id := range v.ids[v.nodes[node].first:v.nodes[node].last] {
		mask[id/64] |= 1 << (id % 64)
	}
}

// top gives what the top of a stack decides. The caller holds the lock.
func (p *Program) top(chain []frame) (*topMask, error) {
	var key []byte
	for _, f := range chain {
		key = p.appendFrame(key, f)
	}
	if t, ok := p.tops[string(key)]; ok {
		return t, nil
	}
	if len(p.local.sets) > maxLocalSets || len(p.local.nodes) > maxNodes/2 {
		p.local = newMachine(p.g)
	}
	if len(p.tops) >= maxMasks*4 {
		clear(p.tops)
	}
	base := int32(0)
	for _, f := range slices.Backward(chain) {
		base, _ = p.local.push(frame{state: f.state, parent: base, count: p.likeCount(f)})
	}
	t := &topMask{mask: make([]uint64, p.vocab.Words())}
	start := p.local.number(set{tops: []int32{base}})
	_, err := walk(p.local, p.vocab, start, 0, int32(len(p.vocab.nodes)), nil, func(node, at int32) {
		p.vocab.mark(node, t.mask)
		if p.local.sets[at].done && p.vocab.nodes[node].end > node+1 {
			t.exits = append(t.exits, node)
		}
	})
	if err != nil {
		return nil, err
	}
	p.tops[string(key)] = t
	return t, nil
}

// walk runs the trie's nodes from first to end, whose parents led to set at,
// and visits those that are alive with the set they lead to.
func walk(m *machine, v *Vocabulary, at, first, end int32, sets []int32, visit func(node, at int32)) ([]int32, error) {
	if first >= end {
		return sets, nil
	}
	top := v.nodes[first].depth
	sets = append(sets[:0], at)
	for n := first; n < end; {
		node := &v.nodes[n]
		d := node.depth - top
		to, err := m.step(sets[d], node.b)
		if err != nil {
			return sets, err
		}
		if to == dead {
			n = node.end
			continue
		}
		visit(n, to)
		sets = append(sets[:d+1], to)
		n++
	}
	return sets, nil
}
