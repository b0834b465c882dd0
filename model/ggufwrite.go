package model

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// GGUFTensor is a named f32 tensor to be written as a ggml type that can be
// written: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.
type GGUFTensor struct {
	Name  string
	Shape []int // row-major, as everywhere in this package
	Type  string
	// Data are parts of the tensor in their order.
	Data [][]float32
}

const ggufAlign = 32

// WriteGGUF writes a GGUF file, version 3: metadata (values of type uint32,
// int32, uint64, float32, bool, string, or a slice of bool, int32, float32 or
// string), tensor descriptions and the tensors in the given order. The bytes
// depend on the arguments only. done, unless nil, is told of bytes of tensors
// written.
func WriteGGUF(w io.Writer, meta map[string]any, tensors []GGUFTensor, done func(n int64)) error {
	head, _, err := ggufHead(meta, tensors)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("model: write gguf: %w", err)
	}
	for _, t := range tensors {
		if err := t.write(w, done); err != nil {
			return fmt.Errorf("model: write gguf tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

// ggufHead is everything before the tensors' data, and the size of that.
func ggufHead(meta map[string]any, tensors []GGUFTensor) (head []byte, dataBytes int64, err error) {
	le := binary.LittleEndian
	head = append([]byte("GGUF"), 3, 0, 0, 0)
	head = le.AppendUint64(head, uint64(len(tensors)))
	head = le.AppendUint64(head, uint64(len(meta)))
	keys := slices.Sorted(maps.Keys(meta))
	if i := slices.Index(keys, ggufArchKey); i > 0 { // first, where quick readers look for it
		keys = slices.Insert(slices.Delete(keys, i, i+1), 0, ggufArchKey)
	}
	for _, key := range keys {
		if head, err = appendGGUFValue(appendGGUFString(head, key), meta[key]); err != nil {
			return nil, 0, fmt.Errorf("model: write gguf key %q: %w", key, err)
		}
	}
	seen := map[string]bool{}
	for _, t := range tensors {
		size, err := t.bytes()
		if err != nil {
			return nil, 0, err
		}
		if seen[t.Name] {
			return nil, 0, fmt.Errorf("model: write gguf: tensor name %q is taken", t.Name)
		}
		seen[t.Name] = true
		head = le.AppendUint32(appendGGUFString(head, t.Name), uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			head = le.AppendUint64(head, uint64(d))
		}
		head = le.AppendUint64(le.AppendUint32(head, ggufTypeID(t.Type)), uint64(dataBytes))
		dataBytes += (size + ggufAlign - 1) / ggufAlign * ggufAlign
	}
	return padGGUF(head, len(head)), dataBytes, nil
}

// bytes checks the tensor and gives its stored size.
func (t GGUFTensor) bytes() (int64, error) {
	q, ok := ggufTypes[t.Type]
	if !ok || q.encode == nil {
		return 0, fmt.Errorf("model: write gguf tensor %q: type %q is not written (have %s)", t.Name, t.Type, haveTypes(true))
	}
	n := 0
	for _, d := range t.Data {
		if len(d)%q.elems != 0 {
			return 0, fmt.Errorf("model: write gguf tensor %q: a part of %d elements is no multiple of %s's block of %d", t.Name, len(d), t.Type, q.elems)
		}
		n += len(d)
	}
	switch {
	case len(t.Shape) == 0 || len(t.Shape) > ggufMaxDims || shapeLen(t.Shape) != n || n == 0:
		return 0, fmt.Errorf("model: write gguf tensor %q: shape %v for %d elements, want 1 to %d dimensions that agree", t.Name, t.Shape, n, ggufMaxDims)
	case t.Shape[len(t.Shape)-1]%q.elems != 0:
		return 0, fmt.Errorf("model: write gguf tensor %q: rows of %d elements are no multiple of %s's block of %d", t.Name, t.Shape[len(t.Shape)-1], t.Type, q.elems)
	}
	return int64(n/q.elems) * int64(q.bytes), nil
}

func (t GGUFTensor) write(w io.Writer, done func(n int64)) error {
	q := ggufTypes[t.Type]
	const chunk = 1 << 18 // a multiple of every block
	var buf []byte
	total := 0
	for _, data := range t.Data {
		for part := range slices.Chunk(data, chunk) {
			buf = q.encode(buf[:0], part)
			if _, err := w.Write(buf); err != nil {
				return err
			}
			total += len(buf)
			if done != nil {
				done(int64(len(buf)))
			}
		}
	}
	_, err := w.Write(padGGUF(nil, total))
	return err
}

// padGGUF appends zeros that bring n to the alignment.
func padGGUF(b []byte, n int) []byte {
	return append(b, make([]byte, (ggufAlign-n%ggufAlign)%ggufAlign)...)
}

func appendGGUFString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendGGUFValue appends a metadata value with its type.
func appendGGUFValue(b []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	array := func(typ uint32, n int) {
		b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), typ), uint64(n))
	}
	switch v := value.(type) {
	case uint32:
		b = le.AppendUint32(le.AppendUint32(b, ggufU32), v)
	case int32:
		b = le.AppendUint32(le.AppendUint32(b, ggufI32), uint32(v))
	case uint64:
		b = le.AppendUint64(le.AppendUint32(b, ggufU64), v)
	case float32:
		b = le.AppendUint32(le.AppendUint32(b, ggufF32), math.Float32bits(v))
	case bool:
		b = append(le.AppendUint32(b, ggufBool), 0)
		if v {
			b[len(b)-1] = 1
		}
	case string:
		b = appendGGUFString(le.AppendUint32(b, ggufString), v)
	case []string:
		array(ggufString, len(v))
		for _, s := range v {
			b = appendGGUFString(b, s)
		}
	case []bool:
		array(ggufBool, len(v))
		for _, x := range v {
			b = append(b, 0)
			if x {
				b[len(b)-1] = 1
			}
		}
	case []int32:
		array(ggufI32, len(v))
		for _, n := range v {
			b = le.AppendUint32(b, uint32(n))
		}
	case []float32:
		array(ggufF32, len(v))
		for _, f := range v {
			b = le.AppendUint32(b, math.Float32bits(f))
		}
	default:
		return nil, fmt.Errorf("values of type %T are not written", value)
	}
	return b, nil
}
