package embed

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// weights of a BERT, matrices as panels of W^T.
type weights struct {
	words, positions, types []float32 // [V, H], [P, H], [T, H]
	norm                    layerNorm
	layers                  []layer
}

type layer struct {
	qkv, out, up, down linear
	attNorm, outNorm   layerNorm
}

type linear struct {
	in, out int
	w, b    []float32 // panels [in, out], [out]
}

type layerNorm struct{ w, b []float32 }

// reader reads named tensors and remembers the first failure.
type reader struct {
	st     *model.SafeTensors
	prefix string
	pool   *f32.Pool
	err    error
}

func readWeights(dir string, c config, pool *f32.Pool) (*weights, error) {
	name := filepath.Join(dir, "model.safetensors")
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("embed: %w (only safetensors are read)", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("embed: %w", err)
	}
	st, err := model.ReadSafeTensors(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, name, err)
	}
	r := &reader{st: st, pool: pool}
	if st.Has("bert.embeddings.word_embeddings.weight") { // saved from a task model
		r.prefix = "bert."
	}
	h := c.Hidden
	w := &weights{
		words:     r.tensor("embeddings.word_embeddings.weight", c.Vocab, h),
		positions: r.tensor("embeddings.position_embeddings.weight", c.MaxPositions, h),
		types:     r.tensor("embeddings.token_type_embeddings.weight", c.Types, h),
		norm:      r.norm("embeddings.LayerNorm", h),
	}
	for i := 0; i < c.Layers && r.err == nil; i++ {
		pre := "encoder.layer." + strconv.Itoa(i) + "."
		self := pre + "attention.self."
		w.layers = append(w.layers, layer{
			qkv:     r.linear(h, h, self+"query", self+"key", self+"value"),
			out:     r.linear(h, h, pre+"attention.output.dense"),
			attNorm: r.norm(pre+"attention.output.LayerNorm", h),
			up:      r.linear(h, c.Inter, pre+"intermediate.dense"),
			down:    r.linear(c.Inter, h, pre+"output.dense"),
			outNorm: r.norm(pre+"output.LayerNorm", h),
		})
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, name, r.err)
	}
	return w, nil
}

// tensor reads one tensor. Its size in the file bounds the allocation.
func (r *reader) tensor(name string, shape ...int) []float32 {
	name = r.prefix + name
	n := 1
	for _, d := range shape {
		n *= d
	}
	if r.err != nil {
		return nil
	}
	for _, t := range r.st.Tensors() {
		if t.Name == name && t.Len() != n {
			r.err = fmt.Errorf("tensor %q has shape %v, config.json wants %v", name, t.Shape, shape)
			return nil
		}
	}
	if !r.st.Has(name) {
		r.err = fmt.Errorf("tensor %q is missing", name)
		return nil
	}
	out := make([]float32, n)
	r.err = r.st.ReadF32(name, shape, out)
	return out
}

func (r *reader) norm(name string, h int) layerNorm {
	return layerNorm{r.tensor(name+".weight", h), r.tensor(name+".bias", h)}
}

// linear reads projections that share an input as one.
func (r *reader) linear(in, out int, names ...string) linear {
	var w, b []float32
	for _, name := range names {
		w = append(w, r.tensor(name+".weight", out, in)...)
		b = append(b, r.tensor(name+".bias", out)...)
	}
	if r.err != nil {
		return linear{}
	}
	l := linear{in: in, out: out * len(names), b: b}
	l.w = make([]float32, f32.PackedLen(in, l.out))
	f32.PackT(r.pool, l.w, w, l.out, in, in)
	return l
}
