package model

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Difference is what Diff finds between two models or two adapters.
type Difference struct {
	Kind string `json:"kind"` // "models" or "adapters"
	// Fields are configuration fields (of an adapter: its LoRA configuration),
	// and "tokenizer" and "chat_template", that differ.
	Fields []FieldDifference `json:"fields"`
	// Tensors are all tensors of either side in their order; Products, of
	// adapters, what they add to the base's matrices, scale*B*A.
	Tensors  []TensorDifference `json:"tensors"`
	Products []TensorDifference `json:"products,omitempty"`
	// Total is over all tensors that both sides have in the same shape.
	Total TensorDifference `json:"total"`
	Equal bool             `json:"equal"`
}

// FieldDifference is one field in words.
type FieldDifference struct {
	Name string `json:"name"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// TensorDifference compares two tensors' numbers, as f32.
type TensorDifference struct {
	Name   string `json:"name"`
	ShapeA []int  `json:"shape_a"` // nil = missing there
	ShapeB []int  `json:"shape_b"`
	// TypeA and TypeB are how the files store them; different types with equal
	// numbers are equal.
	TypeA string `json:"type_a,omitempty"`
	TypeB string `json:"type_b,omitempty"`
	Equal bool   `json:"equal"`
	// MaxAbs is the largest |a-b|; of a product it is not computed and 0.
	MaxAbs float64 `json:"max_abs"`
	// RelNorm is |a-b| / |a| (Frobenius norms), |b| / 1e-30 at most when a is 0.
	// Of a product, less than 1e-7 counts as 0.
	RelNorm float64 `json:"relative_norm"`
	Cosine  float64 `json:"cosine"` // of the angle between a and b; 1 for two zeros
}

// namedTensor is one tensor to compare.
type namedTensor struct {
	name, typ string
	shape     []int
	data      []float32
}

// sums are what a comparison accumulates over elements.
type sums struct{ aa, bb, ab, dd, most float64 }

func (s *sums) add(a, b []float32) {
	for i, v := range a {
		x, y := float64(v), float64(b[i])
		d := x - y
		s.aa, s.bb, s.ab, s.dd = s.aa+x*x, s.bb+y*y, s.ab+x*y, s.dd+d*d
		if d = math.Abs(d); d > s.most || math.IsNaN(d) {
			s.most = d
		}
	}
}

func (s *sums) plus(o sums) {
	s.aa, s.bb, s.ab, s.dd = s.aa+o.aa, s.bb+o.bb, s.ab+o.ab, s.dd+o.dd
	s.most = max(s.most, o.most)
}

// into fills the figures; JSON has no infinities, so they are bounded.
func (s sums) into(t *TensorDifference) {
	finite := func(v float64) float64 {
		if math.IsNaN(v) || v > math.MaxFloat64 {
			return math.MaxFloat64
		}
		return v
	}
	t.MaxAbs = finite(s.most)
	if s.dd > 0 || math.IsNaN(s.dd) {
		t.RelNorm = finite(math.Sqrt(s.dd) / max(math.Sqrt(s.aa), 1e-30))
	}
	switch {
	case s.aa == 0 && s.bb == 0:
		t.Cosine = 1
	case s.aa > 0 && s.bb > 0:
		if c := s.ab / math.Sqrt(s.aa*s.bb); !math.IsNaN(c) {
			t.Cosine = min(max(c, -1), 1)
		}
	}
}

// sameBits: equal, and NaN equals the same NaN.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return x == y || math.Float32bits(x) == math.Float32bits(y) })
}

// compare fills Tensors and Total.
func (d *Difference) compare(a, b []namedTensor) {
	var total sums
	inB := map[string]namedTensor{}
	for _, t := range b {
		inB[t.name] = t
	}
	seen := map[string]bool{}
	for _, x := range a {
		seen[x.name] = true
		y, ok := inB[x.name]
		t := TensorDifference{Name: x.name, ShapeA: x.shape, TypeA: x.typ, ShapeB: y.shape, TypeB: y.typ}
		if ok && slices.Equal(x.shape, y.shape) {
			var s sums
			s.add(x.data, y.data)
			s.into(&t)
			t.Equal = sameBits(x.data, y.data)
			total.plus(s)
		}
		d.Tensors = append(d.Tensors, t)
	}
	for _, y := range b {
		if !seen[y.name] {
			d.Tensors = append(d.Tensors, TensorDifference{Name: y.name, ShapeB: y.shape, TypeB: y.typ})
		}
	}
	total.into(&d.Total)
	d.Total.Name = "total"
	d.Total.Equal = !slices.ContainsFunc(d.Tensors, func(t TensorDifference) bool { return !t.Equal })
	d.Equal = d.Total.Equal && len(d.Fields) == 0
}

// fields adds the fields of two structs of one type that differ, named as in
// their JSON.
func (d *Difference) fields(a, b any) {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		x, y := va.Field(i).Interface(), vb.Field(i).Interface()
		if !reflect.DeepEqual(x, y) {
			name, _, _ := strings.Cut(va.Type().Field(i).Tag.Get("json"), ",")
			d.Fields = append(d.Fields, FieldDifference{name, fmt.Sprint(x), fmt.Sprint(y)})
		}
	}
}

// DiffModels compares two opened models, of one or of different formats; typesA
// and typesB, which may be nil, give the stored type of a tensor by its HF name
// (StoredTypes). Both are loaded.
func DiffModels(a, b *Model, typesA, typesB map[string]string) (*Difference, error) {
	d := &Difference{Kind: "models", Fields: []FieldDifference{}}
	d.fields(a.Config, b.Config)
	tokA, err := tokenizerBytes(a)
	if err != nil {
		return nil, err
	}
	tokB, err := tokenizerBytes(b)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(tokA, tokB) {
		d.Fields = append(d.Fields, FieldDifference{"tokenizer", summary(tokA), summary(tokB)})
	}
	if x, y := templateSourceOf(a), templateSourceOf(b); x != y {
		d.Fields = append(d.Fields, FieldDifference{"chat_template", summary([]byte(x)), summary([]byte(y))})
	}
	if err := errors.Join(a.Weights.Load(), b.Weights.Load()); err != nil {
		return nil, err
	}
	d.compare(modelTensors(a, typesA), modelTensors(b, typesB))
	return d, nil
}

// StoredTypes gives the stored type of every tensor of a model's files by its HF
// name.
func StoredTypes(path string, c Config) (map[string]string, error) {
	info, err := Inspect(path)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]string, len(info.Tensors))
	for _, t := range info.Tensors {
		stored[t.Name] = t.DType
	}
	out := map[string]string{}
	for _, s := range slots(c, &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}) {
		if t, ok := stored[s.name]; ok {
			out[s.name] = t
		} else if t, ok := stored[s.gguf]; ok {
			out[s.name] = t
		}
	}
	return out, nil
}

func modelTensors(m *Model, types map[string]string) []namedTensor {
	var out []namedTensor
	for _, s := range slots(m.Config, m.Weights) {
		out = append(out, namedTensor{s.name, types[s.name], s.shape, *s.data})
	}
	return out
}

func tokenizerBytes(m *Model) ([]byte, error) {
	if m.Tokenizer == nil {
		return nil, nil
	}
	return m.Tokenizer.MarshalJSON()
}

func templateSourceOf(m *Model) string {
	if m.Template == nil {
		return ""
	}
	return m.Template.Source()
}

// summary names long content.
func summary(b []byte) string {
	if len(b) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d bytes, %s", len(b), BlobDigest(b)[:19])
}
