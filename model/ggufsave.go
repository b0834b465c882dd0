package model

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// ggufFileTypes are general.file_type's numbers, for the types that Skein writes.
var ggufFileTypes = map[string]uint32{"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32}

// SaveGGUF writes the model as a .gguf file that Open and llama.cpp read, with
// tokenizer and chat template, and replaces path when all is written. typ is
// F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1. As in llama.cpp's own files,
// vectors and routers stay F32 and, with four- and five-bit types, embedding
// and head are Q8_0; matrices whose rows are no multiple of a quantised type's
// block are F16. notes tell what the format cannot carry. A model whose
// computation GGUF cannot describe is refused, by field. done, unless nil, is
// told of bytes written and their total.
func (m *Model) SaveGGUF(path, typ string, done func(written, total int64)) (notes []string, err error) {
	meta, notes, err := ggufMeta(m.Config, m.Name)
	if err != nil {
		return nil, err
	}
	ft, ok := ggufFileTypes[typ]
	if !ok {
		return nil, fmt.Errorf("model: save gguf: type %q is not written (have %s)", typ, haveTypes(true))
	}
	meta["general.file_type"] = ft
	if ggufTypes[typ].elems > 1 {
		meta["general.quantization_version"] = uint32(2)
	}
	more, err := ggufTextMeta(meta, m)
	if err != nil {
		return nil, err
	}
	notes = append(notes, more...)
	if err := m.Weights.Load(); err != nil {
		return nil, err
	}
	tensors := ggufTensors(m.Config, m.Weights, typ)
	head, total, err := ggufHead(meta, tensors)
	if err != nil {
		return nil, err
	}
	if err := m.checkGGUF(head, total, len(ggufFactors(m.Config)), tensors); err != nil {
		return nil, err
	}
	var report func(int64)
	if done != nil {
		var written int64
		report = func(n int64) { written += n; done(written, total) }
	}
	err = writeAtomic(path, func(w io.Writer) error { return WriteGGUF(w, meta, tensors, report) })
	if err != nil {
		return nil, fmt.Errorf("model: save %s: %w", filepath.Base(path), err)
	}
	return notes, nil
}

// checkGGUF reads the file's start back, up to its first so many tensors, which
// belong to the configuration: it must describe the same model.
func (m *Model) checkGGUF(head []byte, dataBytes int64, factors int, tensors []GGUFTensor) error {
	start := bytes.NewBuffer(slices.Clone(head))
	for _, t := range tensors[:factors] {
		if err := t.write(start, nil); err != nil {
			return err
		}
	}
	g, err := ReadGGUF(bytes.NewReader(start.Bytes()), int64(len(head))+dataBytes)
	if err != nil {
		return fmt.Errorf("model: save gguf: the header does not read back: %w", err)
	}
	c, err := ggufConfig(g)
	if err != nil {
		return fmt.Errorf("model: save gguf: the header does not read back: %w", err)
	}
	c.RopeScaling.Long = m.Config.RopeScaling.Long // chosen when a model is opened
	if field, w, got := ggufDifference(m.Config, c); field != "" {
		return fmt.Errorf("model: save gguf: GGUF's architecture %s can't say %s %v (readers would take %v): keep this model as safetensors", ggufArchitecture(c), field, w, got)
	}
	tok, _, err := ggufText(g)
	if err != nil {
		return fmt.Errorf("model: save gguf: the tokenizer does not read back: %w", err)
	}
	if tok == nil {
		return nil
	}
	for _, text := range ggufSamples {
		if want, got := m.Tokenizer.Encode(text, false), tok.Encode(text, false); !slices.Equal(want, got) {
			return fmt.Errorf("model: save gguf: GGUF can't describe this tokenizer: it makes %v of %q, readers would make %v: keep this model as safetensors", want, text, got)
		}
	}
	return nil
}

// ggufSamples are texts on which tokenizers of different kinds differ.
var ggufSamples = []string{
	"Hello world", " leading and  double   spaces ", "it's we'll I'D 12345 3.14159 1st", "line\n\nline\r\n\ttab", "naïve cafe\u0301 Straße",
	"日本語とкириллица और العربية", "🙂👩‍👩‍👧 €", "x=f(a[0])!=b&&c;", "SHOUTING CamelCase snake_case", "",
}

// ggufDifference names the first field in which two configurations compute
// differently, "" when there is none. Rope is compared by its tables: what
// GGUF says in factors, HF says in formulas.
func ggufDifference(a, b Config) (field string, inA, inB any) {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		f := va.Type().Field(i)
		x, y := va.Field(i).Interface(), vb.Field(i).Interface()
		switch f.Name {
		case "ModelType", "RopeTheta", "LocalRopeTheta", "RopeScaling": // relatives share an architecture; see below
			continue
		case "RMSNormEps", "EmbedScale", "AttnScale", "AttnSoftcap", "LogitSoftcap": // f32 in GGUF
			x, y = float32(x.(float64)), float32(y.(float64))
		case "FullLayers", "NoRopeLayers", "DenseLayers": // nil is all false
			x, y = trimFalse(x.([]bool)), trimFalse(y.([]bool))
		}
		if !reflect.DeepEqual(x, y) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return name, x, y
		}
	}
	for i := range a.NumHiddenLayers {
		x, y := a.Rope(i), b.Rope(i)
		same := len(x.Inv) == len(y.Inv) && near(x.Scale, y.Scale)
		for j := 0; same && j < len(x.Inv); j++ {
			same = near(x.Inv[j], y.Inv[j])
		}
		if !same {
			return fmt.Sprintf("rope_scaling of layer %d", i), a.RopeScaling, b.RopeScaling
		}
	}
	return "", nil, nil
}

// near allows for numbers that were rounded to f32 on their way.
func near(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-6*math.Abs(float64(a)) }

func trimFalse(b []bool) []bool {
	for len(b) > 0 && !b[len(b)-1] {
		b = b[:len(b)-1]
	}
	return append([]bool{}, b...)
}

// ggufTensors are the tensors of a file whose matrices have type typ. They
// alias the weights.
func ggufTensors(c Config, w *Weights, typ string) []GGUFTensor {
	permute := ggufFamilies[ggufArchitecture(c)].permuted
	out := ggufFactors(c) // first, see checkGGUF
	at := map[string]int{}
	for _, s := range slots(c, w) {
		t := GGUFTensor{Name: s.gguf, Shape: s.shape, Type: ggufTensorType(s.gguf, s.shape, typ), Data: [][]float32{*s.data}}
		if s.ropeHeads > 0 && permute {
			t.Data = interleave(*s.data, s.ropeHeads, c.HeadDim)
		}
		if i, ok := at[s.gguf]; ok { // another expert of the same layer
			out[i].Data = append(out[i].Data, *s.data)
			continue
		}
		at[s.gguf] = len(out)
		if s.experts > 0 {
			t.Shape = append([]int{s.experts}, s.shape...)
		}
		out = append(out, t)
	}
	return out
}

// ggufTensorType chooses a tensor's type; see SaveGGUF.
func ggufTensorType(name string, shape []int, typ string) string {
	q := ggufTypes[typ]
	switch {
	case len(shape) == 1, strings.Contains(name, ".ffn_gate_inp."):
		return "F32"
	case q.elems > 1 && shape[len(shape)-1]%q.elems != 0:
		return "F16"
	case q.elems > 1 && (name == "token_embd.weight" || name == "output.weight"):
		return "Q8_0"
	}
	return typ
}

// interleave orders the rows of q or k as llama.cpp wants them where it rotates
// neighbours: row 2*i+half of a head is HF's row half*(d/2)+i. Inverse of
// unpermute.
func interleave(m []float32, heads, headDim int) [][]float32 {
	cols := len(m) / (heads * headDim)
	rows := make([][]float32, 0, heads*headDim)
	for h := range heads {
		for r := range headDim {
			from := h*headDim + r%2*(headDim/2) + r/2
			rows = append(rows, m[from*cols:(from+1)*cols])
		}
	}
	if cols == 1 { // a bias: one part is quicker
		return [][]float32{slices.Concat(rows...)}
	}
	return rows
}
