package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AdapterFile is a LoRA adapter read for comparison, without its base.
type AdapterFile struct {
	LoRA       LoRAConfig
	BaseDigest string // "" when it records none
	tensors    []namedTensor
}

// ReadAdapterFile reads a folder in PEFT's format without checking that it fits
// a model.
func ReadAdapterFile(dir string) (*AdapterFile, error) {
	confPath := filepath.Join(dir, peftConfigFile)
	conf, err := os.ReadFile(confPath)
	if err != nil {
		return nil, fmt.Errorf("model: read adapter: %w", err)
	}
	lora, _, err := parsePEFTConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", confPath, err)
	}
	path := filepath.Join(dir, peftWeightsFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("model: read adapter: %w", err)
	}
	defer f.Close()
	st, err := openSafeTensors(f)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	out := &AdapterFile{LoRA: lora, BaseDigest: st.Metadata[metaBase]}
	for _, t := range st.Tensors() {
		x := namedTensor{t.Name, t.DType, t.Shape, make([]float32, t.Len())}
		if err := st.ReadF32(t.Name, t.Shape, x.data); err != nil {
			return nil, fmt.Errorf("model: %s: %w", path, err)
		}
		out.tensors = append(out.tensors, x)
	}
	slices.SortFunc(out.tensors, func(a, b namedTensor) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// File gives an adapter for comparison; c is its base's configuration.
func (a *Adapter) File(c Config) (*AdapterFile, error) {
	if err := a.Check(c); err != nil {
		return nil, err
	}
	if a.Full {
		return nil, fmt.Errorf("%w: it holds all weights: merge it with its base and compare models", ErrAdapter)
	}
	layout, err := LoRALayout(c, a.LoRA)
	if err != nil {
		return nil, err
	}
	out := &AdapterFile{LoRA: a.LoRA, BaseDigest: a.BaseDigest}
	for _, p := range layout {
		out.tensors = append(out.tensors, namedTensor{p.Name, string(F32), p.Shape, a.Params[p.Offset : p.Offset+p.Len()]})
	}
	slices.SortFunc(out.tensors, func(a, b namedTensor) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// DiffAdapters compares two adapters: their tensors, and what these add to each
// matrix of the base, scale*B*A. Adapters of different rank can have equal
// products.
func DiffAdapters(a, b *AdapterFile) (*Difference, error) {
	d := &Difference{Kind: "adapters", Fields: []FieldDifference{}}
	la, lb := a.LoRA, b.LoRA
	la.Targets, lb.Targets = slices.Sorted(slices.Values(la.Targets)), slices.Sorted(slices.Values(lb.Targets))
	d.fields(la, lb)
	if a.BaseDigest != b.BaseDigest {
		d.Fields = append(d.Fields, FieldDifference{"base_digest", orNone(a.BaseDigest), orNone(b.BaseDigest)})
	}
	d.compare(a.tensors, b.tensors)
	pa, err := a.products()
	if err != nil {
		return nil, err
	}
	pb, err := b.products()
	if err != nil {
		return nil, err
	}
	inB := map[string]product{}
	for _, p := range pb {
		inB[p.name] = p
	}
	for _, x := range pa {
		y, ok := inB[x.name]
		delete(inB, x.name)
		t := TensorDifference{Name: x.name, ShapeA: []int{x.out, x.in}}
		if ok {
			t.ShapeB = []int{y.out, y.in}
		}
		if ok && x.out == y.out && x.in == y.in {
			s := x.compare(y)
			s.into(&t)
			t.Equal = s.dd == 0
		}
		d.Products = append(d.Products, t)
	}
	for _, y := range pb {
		if _, left := inB[y.name]; left {
			d.Products = append(d.Products, TensorDifference{Name: y.name, ShapeB: []int{y.out, y.in}})
		}
	}
	return d, nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// product is scale * B[out,rank] * A[rank,in], not multiplied out.
type product struct {
	name          string
	out, in, rank int
	scale         float64
	a, b          []float32
}

func (f *AdapterFile) products() ([]product, error) {
	byName := map[string]namedTensor{}
	for _, t := range f.tensors {
		byName[t.name] = t
	}
	var out []product
	rank, alpha, bad := f.LoRA.patterns()
	if bad != nil {
		return nil, fmt.Errorf("%w: %w", ErrAdapter, errors.Join(bad...))
	}
	for _, down := range f.tensors {
		name, ok := strings.CutSuffix(down.name, ".lora_A.weight")
		if !ok {
			continue
		}
		up, ok := byName[name+".lora_B.weight"]
		module := strings.TrimPrefix(name, peftPrefix)
		r := rank.of(module, f.LoRA.Rank)
		if !ok || len(down.shape) != 2 || len(up.shape) != 2 || up.shape[1] != down.shape[0] || down.shape[0] != r {
			return nil, fmt.Errorf("%w: tensor %q of shape %v has no matching lora_B of rank %d", ErrAdapter, down.name, down.shape, r)
		}
		out = append(out, product{
			name: module, out: up.shape[0], in: down.shape[1], rank: r,
			scale: f.LoRA.scale(r, alpha.of(module, f.LoRA.Alpha)), a: down.data, b: up.data,
		})
	}
	return out, nil
}

// inner is the Frobenius inner product of two products, by their small Gram
// matrices: <B A, D C> = sum over r, s of (B'D)[r,s] * (A C')[r,s].
func (p product) inner(q product) float64 {
	gram := make([]float64, p.rank*q.rank)
	for o := range p.out {
		row, other := p.b[o*p.rank:(o+1)*p.rank], q.b[o*q.rank:(o+1)*q.rank]
		for r, v := range row {
			for s, w := range other {
				gram[r*q.rank+s] += float64(v) * float64(w)
			}
		}
	}
	var sum float64
	for r := range p.rank {
		x := p.a[r*p.in : (r+1)*p.in]
		for s := range q.rank {
			y := q.a[s*q.in : (s+1)*q.in]
			var dot float64
			for i, v := range x {
				dot += float64(v) * float64(y[i])
			}
			sum += gram[r*q.rank+s] * dot
		}
	}
	return p.scale * q.scale * sum
}

// compare gives the norms. |p-q|^2 is found as a difference of squares, so what
// lies below its rounding counts as equal.
func (p product) compare(q product) sums {
	s := sums{aa: max(p.inner(p), 0), bb: max(q.inner(q), 0), ab: p.inner(q)}
	s.dd = s.aa + s.bb - 2*s.ab
	if s.dd <= 1e-14*max(s.aa, s.bb) {
		s.dd = 0
	}
	return s
}
