package model

import (
	"fmt"
	"slices"
)

// Load reads everything into memory and closes the files; it does nothing for
// weights that are in memory. It must not run beside other uses of them. When it
// fails they are as before.
func (w *Weights) Load() error {
	s := w.stored
	if s == nil {
		return nil
	}
	var all *Weights
	if err := s.use(func() (err error) { all, err = s.load(); return err }); err != nil {
		return err
	}
	*w = *all
	if err := s.close(); err != nil {
		return fmt.Errorf("model: close: %w", err)
	}
	return nil
}

// Layer gives layer i. One in files is read into l, whose memory is used again;
// one in memory is given as it is, and l stays as it was.
func (w *Weights) Layer(i int, l *LayerWeights) (*LayerWeights, error) {
	s := w.stored
	if s == nil {
		return &w.Layers[i], nil
	}
	return l, s.use(func() error { return s.layer(i, l) })
}

// Tensors lists layer i's tensors under their HF names, with the shapes that the
// configuration wants. Experts must be as many as it says.
func (l *LayerWeights) Tensors(c Config, i int) []Tensor {
	var out []Tensor
	for _, s := range c.layerSlots(nil, i, l) {
		out = append(out, Tensor{Name: s.name, Shape: s.shape, Data: *s.data})
	}
	return out
}

// EmbedRows gives rows [lo, hi) of the embedding: read into buf, which grows
// when it must, or a view of what is in memory.
func (w *Weights) EmbedRows(lo, hi int, buf []float32) ([]float32, error) {
	return w.rows(w.Embed, "model.embed_tokens.weight", (*stored).embed, lo, hi, buf)
}

// HeadRows is EmbedRows for the language-model head.
func (w *Weights) HeadRows(lo, hi int, buf []float32) ([]float32, error) {
	return w.rows(w.Head, "lm_head.weight", (*stored).head, lo, hi, buf)
}

func (w *Weights) rows(memory []float32, name string, tensor func(*stored) *storedTensor, lo, hi int, buf []float32) ([]float32, error) {
	hidden := len(w.Norm)
	s := w.stored
	if s == nil {
		if hi*hidden > len(memory) {
			return nil, fmt.Errorf("model: tensor %q has %d elements, row %d ends at %d", name, len(memory), hi-1, hi*hidden)
		}
		return memory[lo*hidden : hi*hidden], nil
	}
	buf = slices.Grow(buf[:0], (hi-lo)*hidden)[:(hi-lo)*hidden]
	return buf, s.use(func() error { return tensor(s).read(lo, hi, buf, nil) })
}

// Close closes the files that a model reads its weights from; tensors in memory
// stay. It waits for reads in progress; reading later fails.
func (m *Model) Close() error {
	if m.Weights == nil || m.Weights.stored == nil {
		return nil
	}
	if err := m.Weights.stored.close(); err != nil {
		return fmt.Errorf("model: close: %w", err)
	}
	return nil
}
