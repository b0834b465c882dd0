package learner

import (
	"encoding/binary"

	"github.com/skein-rl/skein/model"
)

// micro is one forward and backward pass: prefix groups, and where each of
// their scores belongs.
type micro struct {
	groups []model.PrefixGroup
	spans  []span
	tokens int // computed tokens: shared prompts once
}

// span: the next n scores are tokens [at, at+n) of row.
type span struct{ row, at, n int }

// pack cuts rows into micro-batches of about budget computed tokens. A row's
// sequences stay together, equal prompts of a micro-batch are computed once,
// and the order of rows is kept, so equal inputs pack alike.
func pack(rows [][]sequence, use func(row int) bool, budget int) []micro {
	var out []micro
	p := newPacker()
	for i, seqs := range rows {
		if len(seqs) == 0 || !use(i) {
			continue
		}
		if p.tokens > 0 && p.tokens+p.cost(seqs) > budget {
			out = append(out, p.done())
			p = newPacker()
		}
		p.add(i, seqs)
	}
	if p.tokens > 0 {
		out = append(out, p.done())
	}
	return out
}

type packer struct {
	at     map[string]int // prompt bytes -> index in groups
	groups []model.PrefixGroup
	spans  [][]span // per group, in member order
	tokens int
}

func newPacker() *packer { return &packer{at: map[string]int{}} }

func promptKey(ids []int32) string {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return string(b)
}

func (p *packer) cost(seqs []sequence) int {
	n := 0
	fresh := map[string]bool{}
	for _, s := range seqs {
		k := promptKey(s.prompt)
		if _, ok := p.at[k]; !ok && !fresh[k] {
			fresh[k] = true
			n += len(s.prompt)
		}
		n += len(s.Tokens)
	}
	return n
}

func (p *packer) add(row int, seqs []sequence) {
	p.tokens += p.cost(seqs)
	at := 0
	for _, s := range seqs {
		k := promptKey(s.prompt)
		g, ok := p.at[k]
		if !ok {
			g = len(p.groups)
			p.at[k] = g
			p.groups = append(p.groups, model.PrefixGroup{Prompt: s.prompt})
			p.spans = append(p.spans, nil)
		}
		p.groups[g].Members = append(p.groups[g].Members, s.Sequence)
		p.spans[g] = append(p.spans[g], span{row, at, s.trained})
		at += s.trained
	}
}

func (p *packer) done() micro {
	m := micro{groups: p.groups, tokens: p.tokens}
	for _, s := range p.spans {
		m.spans = append(m.spans, s...)
	}
	return m
}

// scores is the number of log-probabilities the micro-batch yields.
func (m micro) scores() int {
	n := 0
	for _, s := range m.spans {
		n += s.n
	}
	return n
}

// rows lists the rows of a micro-batch, each once, in order of first use.
func (m micro) rows() []int {
	var out []int
	seen := map[int]bool{}
	for _, s := range m.spans {
		if !seen[s.row] {
			seen[s.row] = true
			out = append(out, s.row)
		}
	}
	return out
}

// scatter copies scores to their rows; dst(row) has the row's length.
func (m micro) scatter(scores []float32, dst func(row int) []float64) {
	k := 0
	for _, s := range m.spans {
		d := dst(s.row)
		for t := range s.n {
			d[s.at+t] = float64(scores[k])
			k++
		}
	}
}

// gather is the inverse of scatter.
func (m micro) gather(src func(row int) []float64) []float32 {
	out := make([]float32, 0, m.scores())
	for _, s := range m.spans {
		for _, x := range src(s.row)[s.at : s.at+s.n] {
			out = append(out, float32(x))
		}
	}
	return out
}
