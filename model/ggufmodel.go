package model

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// shape is the slot's in GGUF, which stacks experts.
func (s slot) ggufShape() []int {
	if s.experts > 0 {
		return append([]int{s.experts}, s.shape...)
	}
	return s.shape
}

// check compares names and shapes with the configuration: every tensor of the
// architecture, and no other, must be there.
func (g *GGUF) check(c Config) error {
	used := map[string]bool{}
	for _, name := range ggufRopeTensors { // read with the configuration
		used[name] = true
	}
	for _, s := range slots(c, &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}) {
		if used[s.gguf] {
			continue
		}
		used[s.gguf] = true
		t, ok := g.tensors[s.gguf]
		if !ok {
			return fmt.Errorf("%w: tensor %q is missing", ErrFormat, s.gguf)
		}
		if want := s.ggufShape(); !slices.Equal(t.Shape, want) {
			return fmt.Errorf("%w: tensor %q has shape %v, the metadata wants %v", ErrFormat, s.gguf, t.Shape, want)
		}
		// The file bounds the size of types that are known only.
		if _, ok := ggufTypes[t.DType]; !ok {
			return fmt.Errorf("%w: tensor %q: %w", ErrFormat, s.gguf, refuseGGUF(t.DType))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.tensors)) {
		if !used[name] {
			return fmt.Errorf("%w: gguf: tensor %q is not part of the architecture in the metadata (%s, %d layers)", ErrFormat, name, c.ModelType, c.NumHiddenLayers)
		}
	}
	return nil
}

// stored finds every base tensor. Shapes are checked first: the metadata may lie
// about sizes.
func (g *GGUF) stored(c Config, files io.Closer) (*stored, error) {
	if err := g.check(c); err != nil {
		return nil, err
	}
	permuted := g.family().permuted
	return newStored(c, files, func(t *storedTensor) error {
		info := g.tensors[t.gguf]
		t.stored, t.file, t.at, t.q = t.gguf, info.file, info.offset, ggufTypes[info.DType]
		if t.experts > 0 { // one tensor in the file
			t.at += int64(t.expert) * t.bytes()
		}
		if permuted {
			t.permuted = t.ropeHeads
		}
		return nil
	})
}

// unpermute turns llama.cpp's interleaved rope rows into HF's halves, in place:
// within a head, HF row half*(d/2)+i is GGUF row 2*i+half. A bias has rows of
// one number.
func unpermute(m []float32, heads, headDim int) {
	cols := len(m) / (heads * headDim)
	tmp := make([]float32, headDim*cols)
	for h := range heads {
		head := m[h*headDim*cols : (h+1)*headDim*cols]
		copy(tmp, head)
		for half := range 2 {
			for i := range headDim / 2 {
				to, from := half*headDim/2+i, 2*i+half
				copy(head[to*cols:(to+1)*cols], tmp[from*cols:(from+1)*cols])
			}
		}
	}
}

// ggufStops gathers the end-of-sequence ids that the metadata names.
func ggufStops(g *GGUF) []int32 {
	var out []int32
	for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		if v, ok := g.Meta["tokenizer.ggml."+key].(uint64); ok && v < 1<<31 && !slices.Contains(out, int32(v)) {
			out = append(out, int32(v))
		}
	}
	return out
}
