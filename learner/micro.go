package learner

import (
	"github.com/skein-rl/skein/model"
)

// micro is one forward and backward pass: trees of sequences, and where each of
// their scores belongs.
type micro struct {
	groups []model.PrefixGroup
	spans  []span // row by row
	order  []int  // its rows
	tokens int    // computed: what sequences share once
	given  int    // of all sequences, each whole
	marks  int    // scores, or values, that the trainer yields
	valued bool   // they are values
}

// span: scores [from, from+n) are marked tokens [at, at+n) of row. Sequences that
// share a token share its score.
type span struct{ from, row, at, n int }

// pack cuts rows into micro-batches of about budget computed tokens. A row's
// sequences stay together, what sequences of a micro-batch share is computed
// once, and the order of rows is kept, so equal inputs pack alike.
func pack(rows [][]sequence, use func(row int) bool, budget int) []micro {
	var out []micro
	var f forest
	for i, seqs := range rows {
		if len(seqs) == 0 || !use(i) {
			continue
		}
		before := len(f.leaves)
		f.add(i, seqs)
		if before > 0 && f.tokens > budget {
			out = append(out, f.first(before).micro())
			f = forest{}
			f.add(i, seqs)
		}
	}
	if len(f.leaves) > 0 {
		out = append(out, f.micro())
	}
	return out
}

// scores is the number of scores or values the micro-batch yields.
func (m micro) scores() int { return m.marks }

// rows lists the rows of a micro-batch in their order.
func (m micro) rows() []int { return m.order }

// scatter brings scores to their rows; dst(row) has the row's length.
func (m micro) scatter(scores []float32, dst func(row int) []float64) {
	for _, s := range m.spans {
		d := dst(s.row)[s.at:]
		for t, x := range scores[s.from : s.from+s.n] {
			d[t] = float64(x)
		}
	}
}

// gather is the transpose of scatter: what rows say of a score they share is
// added.
func (m micro) gather(src func(row int) []float64) []float32 {
	sums := make([]float64, m.marks)
	for _, s := range m.spans {
		for t, x := range src(s.row)[s.at : s.at+s.n] {
			sums[s.from+t] += x
		}
	}
	out := make([]float32, len(sums))
	for i, x := range sums {
		out[i] = float32(x)
	}
	return out
}

// total adds up every row's scores.
func (m micro) total(scores []float32) (sum float64) {
	for _, s := range m.spans {
		for _, x := range scores[s.from : s.from+s.n] {
			sum += float64(x)
		}
	}
	return sum
}
