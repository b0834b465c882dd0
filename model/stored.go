package model

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
)

// stored are a model's tensors in its files. Reads may overlap.
type stored struct {
	c       Config
	tensors []storedTensor // in the order of slots
	layers  []int          // index of each layer's first tensor, and where the last one ends

	mu    sync.RWMutex // held for writing to close
	files io.Closer    // nil: closed
}

// storedTensor is where a slot's numbers lie.
type storedTensor struct {
	slot
	file     io.ReaderAt
	at       int64
	stored   string // its name there
	q        blockType
	permuted int  // heads whose rows GGUF orders otherwise, 0 = none
	plusOne  bool // Config.NormPlusOne
}

// rows is the first dimension of a matrix; a vector is one row.
func (t *storedTensor) rows() int {
	if len(t.shape) == 1 {
		return 1
	}
	return t.shape[0]
}

func (t *storedTensor) len() int { return shapeLen(t.shape) }

func (t *storedTensor) bytes() int64 { return int64(t.len()/t.q.elems) * int64(t.q.bytes) }

// read decodes rows [lo, hi), whole heads where rows are permuted.
func (t *storedTensor) read(lo, hi int, dst []float32, done func(n int64)) error {
	width := t.len() / t.rows()
	dst = dst[:(hi-lo)*width]
	skip := int64(lo*width/t.q.elems) * int64(t.q.bytes)
	if err := readBlocks(t.file, t.at+skip, t.q, dst, done); err != nil {
		return fmt.Errorf("model: read tensor %q: %w", t.stored, err)
	}
	if t.plusOne {
		for i := range dst {
			dst[i]++
		}
	}
	if t.permuted > 0 {
		headDim := t.shape[0] / t.permuted
		unpermute(dst, len(dst)*t.permuted/t.len(), headDim)
	}
	return nil
}

// newStored makes tensors of slots: place fills in where one lies.
func newStored(c Config, files io.Closer, place func(*storedTensor) error) (*stored, error) {
	s := &stored{c: c, files: files}
	for _, x := range slots(c, &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}) {
		x.data = nil
		t := storedTensor{slot: x}
		if err := place(&t); err != nil {
			return nil, err
		}
		s.tensors = append(s.tensors, t)
	}
	at := 1 // after the embedding
	for i := range c.NumHiddenLayers {
		s.layers = append(s.layers, at)
		at += len(c.layerSlots(nil, i, &LayerWeights{}))
	}
	s.layers = append(s.layers, at)
	return s, nil
}

// weights are s as a model has them: the final norm in memory, the rest in the
// files.
func (s *stored) weights() (*Weights, error) {
	w := &Weights{Layers: make([]LayerWeights, s.c.NumHiddenLayers), stored: s}
	norm := &s.tensors[s.layers[s.c.NumHiddenLayers]]
	w.Norm = make([]float32, norm.len())
	return w, norm.read(0, 1, w.Norm, nil)
}

func (s *stored) embed() *storedTensor { return &s.tensors[0] }

// head is the language-model head, which may be the embedding.
func (s *stored) head() *storedTensor {
	if s.c.TieWordEmbeddings {
		return s.embed()
	}
	return &s.tensors[len(s.tensors)-1]
}

// use calls f while the files stay open.
func (s *stored) use(f func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.files == nil {
		return fmt.Errorf("model: weights that are not in memory: %w: read them before Model.Close, or call Weights.Load", fs.ErrClosed)
	}
	return f()
}

func (s *stored) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		return nil
	}
	defer func() { s.files = nil }()
	return s.files.Close()
}

// layer reads layer i into l, whose memory it uses again.
func (s *stored) layer(i int, l *LayerWeights) error {
	ts := s.tensors[s.layers[i]:s.layers[i+1]]
	for j, x := range s.c.layerSlots(nil, i, l) {
		*x.data = slices.Grow((*x.data)[:0], ts[j].len())[:ts[j].len()]
		if err := ts[j].read(0, ts[j].rows(), *x.data, nil); err != nil {
			return err
		}
	}
	l.alias(s.c)
	return nil
}

// load reads everything.
func (s *stored) load() (*Weights, error) {
	w := &Weights{Layers: make([]LayerWeights, s.c.NumHiddenLayers)}
	for i, x := range slots(s.c, w) {
		t := &s.tensors[i]
		*x.data = make([]float32, t.len())
		if err := t.read(0, t.rows(), *x.data, nil); err != nil {
			return nil, err
		}
	}
	w.alias(s.c)
	return w, nil
}

// flatten reads everything into one vector.
func (s *stored) flatten(out []float32) error {
	for i := range s.tensors {
		t := &s.tensors[i]
		if err := t.read(0, t.rows(), out, nil); err != nil {
			return err
		}
		out = out[t.len():]
	}
	return nil
}

// closers close together.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, x := range c {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}
