package data

import (
	"encoding/binary"
	"math"

	"lukechampine.com/blake3"
)

// Completion is what follows a prompt, in token ids.
type Completion struct {
	Tokens []int32
	// Weights per token of Tokens, 0 = not trained; nil = 1 everywhere.
	Weights []float32
}

// Trained counts the tokens with a weight above 0.
func (c Completion) Trained() int {
	if c.Weights == nil {
		return len(c.Tokens)
	}
	n := 0
	for _, w := range c.Weights {
		if w > 0 {
			n++
		}
	}
	return n
}

// Example is one tokenised row of any kind: a demonstration (Chosen), a
// completion with a verdict (Chosen and Label), a pair (Chosen and Rejected) or
// a prompt alone.
type Example struct {
	Prompt   []int32
	Chosen   Completion
	Rejected Completion // of a pair; its Tokens are nil otherwise
	Label    bool       // of a verdict: true is desirable
	// Weight multiplies the row's loss; 0 is 1.
	Weight float64
	// Margin is by how much the chosen one is better, where known.
	Margin float64
	// Difficulty orders a curriculum.
	Difficulty float64
	// Embedding of the prompt, for bco's density ratio; nil without.
	Embedding []float64
	// Where tells people where the row is from: file:line, or log ids.
	Where string
	// Source is the index of the row's source in its set.
	Source int
}

// Pair says whether the example has two completions.
func (e *Example) Pair() bool { return e.Rejected.Tokens != nil }

// Len is the number of tokens computed for it: the prompt once.
func (e *Example) Len() int { return len(e.Prompt) + len(e.Chosen.Tokens) + len(e.Rejected.Tokens) }

// RowWeight is Weight with 0 read as 1.
func (e *Example) RowWeight() float64 {
	if e.Weight == 0 {
		return 1
	}
	return e.Weight
}

// appendBytes writes what training depends on, unambiguously.
func (e *Example) appendBytes(b []byte) []byte {
	ids := func(v []int32) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(v)))
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
	}
	ids(e.Prompt)
	for _, c := range []Completion{e.Chosen, e.Rejected} {
		ids(c.Tokens)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Weights)))
		for _, w := range c.Weights {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(w))
		}
	}
	flags := byte(0)
	if e.Label {
		flags = 1
	}
	b = append(b, flags)
	for _, x := range []float64{e.RowWeight(), e.Margin, e.Difficulty} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Embedding)))
	for _, x := range e.Embedding {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return binary.LittleEndian.AppendUint32(b, uint32(e.Source))
}

// digest is BLAKE3 of examples and of the rules of their order.
func digest(rows []Example, rules string) []byte {
	h := blake3.New(32, nil)
	var buf []byte
	for i := range rows {
		buf = rows[i].appendBytes(buf[:0])
		h.Write(buf)
	}
	h.Write([]byte(rules))
	return h.Sum(nil)
}
