package model

import (
	"fmt"
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

// ggufWeights dequantises every base tensor. Shapes are checked before anything
// is allocated: the metadata may lie about sizes.
func ggufWeights(g *GGUF, c Config) (*Weights, error) {
	if err := g.check(c); err != nil {
		return nil, err
	}
	w := &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}
	permuted := g.family().permuted
	stacked := map[string][]float32{} // experts of a layer, one tensor in the file
	for _, s := range slots(c, w) {
		data, ok := stacked[s.gguf]
		if !ok {
			shape := s.ggufShape()
			data = make([]float32, shapeLen(shape))
			if err := g.ReadF32(s.gguf, shape, data); err != nil {
				return nil, err
			}
		}
		if s.experts > 0 {
			stacked[s.gguf] = data
			n := shapeLen(s.shape)
			data = data[s.expert*n : (s.expert+1)*n : (s.expert+1)*n]
		}
		if permuted && s.ropeHeads > 0 {
			unpermute(data, s.ropeHeads, c.HeadDim)
		}
		*s.data = data
	}
	w.alias(c)
	return w, nil
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
