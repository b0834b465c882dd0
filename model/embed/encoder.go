package embed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// ErrTooLong: a text has more tokens than the encoder takes.
var ErrTooLong = errors.New("embed: text is too long")

// Encoder is a loaded sentence encoder. Safe for concurrent use.
type Encoder struct {
	Name string
	c    config
	w    *weights
	tok  *model.Tokenizer
	pool *f32.Pool
}

// Open loads a sentence-transformers directory (config.json, modules.json,
// tokenizer.json, model.safetensors). threads < 1 means one.
func Open(dir string, threads int) (*Encoder, error) {
	c, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	tok, _, err := model.OpenText(dir)
	if err != nil {
		return nil, fmt.Errorf("embed: open %s: %w", dir, err)
	}
	if tok == nil {
		return nil, fmt.Errorf("%w: %s has no tokenizer.json", ErrFormat, dir)
	}
	if err := tok.CheckVocab(c.Vocab); err != nil {
		return nil, fmt.Errorf("embed: open %s: %w", dir, err)
	}
	pool := f32.NewPool(threads)
	w, err := readWeights(dir, c, pool)
	if err != nil {
		return nil, err
	}
	return &Encoder{Name: filepath.Base(dir), c: c, w: w, tok: tok, pool: pool}, nil
}

// Dim is the length of a vector.
func (e *Encoder) Dim() int { return e.c.Hidden }

// MaxTokens is the longest text in tokens, special ones included.
func (e *Encoder) MaxTokens() int { return e.c.maxTokens }

// Tokenize gives a text's ids, special tokens included. A text over MaxTokens
// is ErrTooLong unless truncate is set: then its end is cut off, as
// sentence-transformers does without asking.
func (e *Encoder) Tokenize(text string, truncate bool) ([]int32, error) {
	ids := e.tok.WithSpecials(e.tok.Encode(text, false))
	if len(ids) <= e.c.maxTokens {
		return ids, nil
	}
	if !truncate {
		return nil, fmt.Errorf("%w: %d tokens, %s takes %d; shorten it or ask for truncation", ErrTooLong, len(ids), e.Name, e.c.maxTokens)
	}
	around := len(e.tok.WithSpecials(nil))
	return e.tok.WithSpecials(e.tok.Encode(text, false)[:e.c.maxTokens-around]), nil
}

// batchTokens bounds the rows computed at once.
const batchTokens = 4096

// Encode gives one vector [Dim] per sequence of ids. It stops between batches
// when ctx ends.
func (e *Encoder) Encode(ctx context.Context, seqs [][]int32) ([][]float32, error) {
	for i, ids := range seqs {
		if len(ids) == 0 || len(ids) > e.c.maxTokens {
			return nil, fmt.Errorf("%w: sequence %d has %d tokens, want 1 to %d", ErrTooLong, i, len(ids), e.c.maxTokens)
		}
		for _, id := range ids {
			if id < 0 || int(id) >= e.c.Vocab {
				return nil, fmt.Errorf("embed: sequence %d holds token id %d, the vocabulary has %d", i, id, e.c.Vocab)
			}
		}
	}
	var out [][]float32
	for lo := 0; lo < len(seqs); {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("embed: after %d of %d texts: %w", lo, len(seqs), err)
		}
		hi, tokens := lo, 0
		for hi < len(seqs) && (hi == lo || tokens+len(seqs[hi]) <= batchTokens) {
			tokens += len(seqs[hi])
			hi++
		}
		out = append(out, e.batch(seqs[lo:hi])...)
		lo = hi
	}
	for i, v := range out {
		for _, x := range v {
			if x-x != 0 {
				return nil, fmt.Errorf("embed: the vector of text %d is not finite: the weights are damaged", i)
			}
		}
	}
	return out, nil
}

// batch encodes sequences packed one after the other: x is [N, H] for all
// their tokens, and only attention looks at where one ends.
func (e *Encoder) batch(seqs [][]int32) [][]float32 {
	h := e.c.Hidden
	var starts []int
	n := 0
	for _, s := range seqs {
		starts = append(starts, n)
		n += len(s)
	}
	starts = append(starts, n)
	x := make([]float32, n*h)
	for i, s := range seqs {
		for j, id := range s {
			row := x[(starts[i]+j)*h:][:h]
			copy(row, e.w.words[int(id)*h:])
			f32.Add(row, e.w.types[:h])
			f32.Add(row, e.w.positions[j*h:][:h])
		}
	}
	e.norm(x, e.w.norm)
	for i := range e.w.layers {
		l := &e.w.layers[i]
		qkv := e.project(x, l.qkv, n)
		att := make([]float32, n*h)
		e.attend(att, qkv, starts)
		y := e.project(att, l.out, n)
		f32.Add(y, x)
		e.norm(y, l.attNorm)
		up := e.project(y, l.up, n)
		e.pool.Rows(len(up), 1<<13, func(lo, hi int) {
			for j, v := range up[lo:hi] {
				up[lo+j] = float32(float64(v) * 0.5 * (1 + math.Erf(float64(v)/math.Sqrt2)))
			}
		})
		x = e.project(up, l.down, n)
		f32.Add(x, y)
		e.norm(x, l.outNorm)
	}
	out := make([][]float32, len(seqs))
	for i := range seqs {
		out[i] = e.poolRows(x[starts[i]*h : starts[i+1]*h])
	}
	return out
}

// project gives xW^T + b, [N, out].
func (e *Encoder) project(x []float32, l linear, n int) []float32 {
	y := make([]float32, n*l.out)
	f32.Gemm(e.pool, n, l.out, l.in, f32.A{Data: x, RowStride: l.in, ColStride: 1}, f32.Packed(l.w, l.in), y, l.out, false)
	for i := range n {
		f32.Add(y[i*l.out:(i+1)*l.out], l.b)
	}
	return y
}

// norm is LayerNorm over rows (Ba et al. 2016, arXiv:1607.06450), in place.
func (e *Encoder) norm(x []float32, p layerNorm) {
	h := e.c.Hidden
	e.pool.Rows(len(x)/h, 16, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row := x[r*h : (r+1)*h]
			var mean, square float64
			for _, v := range row {
				mean += float64(v)
			}
			mean /= float64(h)
			for _, v := range row {
				square += (float64(v) - mean) * (float64(v) - mean)
			}
			inv := 1 / math.Sqrt(square/float64(h)+e.c.Eps)
			for i, v := range row {
				row[i] = float32((float64(v)-mean)*inv)*p.w[i] + p.b[i]
			}
		}
	})
}

// attend is full self-attention inside each sequence, one task per sequence
// and head: qkv is [N, 3H], out [N, H].
func (e *Encoder) attend(out, qkv []float32, starts []int) {
	h, d := e.c.Hidden, e.c.Hidden/e.c.Heads
	scale := float32(1 / math.Sqrt(float64(d)))
	e.pool.For((len(starts)-1)*e.c.Heads, func(t int) {
		lo, head := starts[t/e.c.Heads], t%e.c.Heads
		n := starts[t/e.c.Heads+1] - lo
		rows := qkv[lo*3*h+head*d:]
		keys := make([]float32, f32.PackedLen(d, n))
		f32.PackT(nil, keys, rows[h:], n, d, 3*h)
		width := f32.Pad(n)
		scores := make([]float32, n*width)
		f32.Gemm(nil, n, n, d, f32.A{Data: rows, RowStride: 3 * h, ColStride: 1}, f32.Packed(keys, d), scores, width, false)
		for i := range n {
			row := scores[i*width : i*width+n]
			f32.Exp(row, scale, -scale*f32.Max(row))
			f32.Scale(row, 1/f32.Sum(row))
		}
		values := make([]float32, f32.PackedLen(n, d))
		f32.PackN(nil, values, rows[2*h:], n, d, 3*h)
		f32.Gemm(nil, n, d, n, f32.A{Data: scores, RowStride: width, ColStride: 1}, f32.Packed(values, n), out[lo*h+head*d:], h, false)
	})
}

// poolRows turns a sequence's rows into its vector.
func (e *Encoder) poolRows(x []float32) []float32 {
	h := e.c.Hidden
	sum := make([]float64, h)
	rows := len(x) / h
	if e.c.cls {
		rows = 1
	}
	for r := range rows {
		for i, v := range x[r*h : (r+1)*h] {
			sum[i] += float64(v)
		}
	}
	scale := 1 / float64(rows)
	if e.c.normalize {
		var square float64
		for _, v := range sum {
			square += v * v * scale * scale
		}
		scale /= max(math.Sqrt(square), 1e-12)
	}
	out := make([]float32, h)
	for i, v := range sum {
		out[i] = float32(v * scale)
	}
	return out
}
