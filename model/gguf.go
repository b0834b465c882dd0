package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// GGUF is the header of a GGUF file (versions 2 and 3, little endian):
// metadata and tensor descriptions. Tensor data is read on demand.
type GGUF struct {
	// Meta maps a key to uint64, int64, float64, bool, string, or a slice of
	// one of these ([]uint64, []int64, []float64, []bool, []string).
	Meta map[string]any

	tensors map[string]TensorInfo
	names   []string
}

// GGUF's metadata value types, in wire order.
const (
	ggufU8 uint32 = iota
	ggufI8
	ggufU16
	ggufI16
	ggufU32
	ggufI32
	ggufF32
	ggufBool
	ggufString
	ggufArray
	ggufU64
	ggufI64
	ggufF64
)

const (
	ggufMaxString = 16 << 20 // bytes
	ggufMaxDims   = 4
	ggufMaxDim    = 1 << 40
)

// ReadGGUF reads the header of a file of size bytes and checks that every
// tensor lies inside it. Errors wrap ErrFormat and name the key or tensor.
func ReadGGUF(r io.ReaderAt, size int64) (*GGUF, error) {
	d := &ggufDecoder{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), left: size}
	var magic [4]byte
	if d.full(magic[:]); d.err != nil || string(magic[:]) != "GGUF" {
		return nil, fmt.Errorf("%w: gguf: starts with %q, want \"GGUF\"", ErrFormat, magic[:])
	}
	if v := d.u32(); v != 2 && v != 3 {
		return nil, fmt.Errorf("%w: gguf: version %d is not implemented (have 2 and 3, little endian)", ErrFormat, v)
	}
	nTensors, nKV := d.u64(), d.u64()
	// A tensor takes at least 28 bytes of header and a key at least 13.
	if d.err == nil && (nTensors > uint64(size)/28 || nKV > uint64(size)/13) {
		return nil, fmt.Errorf("%w: gguf: %d tensors and %d keys don't fit a file of %d bytes", ErrFormat, nTensors, nKV, size)
	}
	g := &GGUF{Meta: map[string]any{}, tensors: map[string]TensorInfo{}}
	for i := uint64(0); i < nKV && d.err == nil; i++ {
		key := d.str()
		val := d.value(d.u32())
		if d.err != nil {
			return nil, fmt.Errorf("%w: gguf: key %d of %d (%q): %v", ErrFormat, i+1, nKV, key, d.err)
		}
		if _, dup := g.Meta[key]; dup {
			return nil, fmt.Errorf("%w: gguf: key %q appears twice", ErrFormat, key)
		}
		g.Meta[key] = val
	}
	for i := uint64(0); i < nTensors && d.err == nil; i++ {
		t, err := d.tensor()
		if err != nil {
			return nil, fmt.Errorf("%w: gguf: tensor %d of %d (%q): %v", ErrFormat, i+1, nTensors, t.Name, err)
		}
		if _, dup := g.tensors[t.Name]; dup {
			return nil, fmt.Errorf("%w: gguf: tensor %q appears twice", ErrFormat, t.Name)
		}
		g.tensors[t.Name] = t
		g.names = append(g.names, t.Name)
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: gguf: header: %v", ErrFormat, d.err)
	}
	align := int64(32)
	if v, ok := g.Meta["general.alignment"]; ok {
		a, ok := v.(uint64)
		if !ok || a == 0 || a > 1<<20 {
			return nil, fmt.Errorf("%w: gguf: general.alignment is %v, want 1 to %d", ErrFormat, v, 1<<20)
		}
		align = int64(a)
	}
	start := (size - d.left + align - 1) / align * align
	for name, t := range g.tensors {
		t.offset, t.file = t.offset+start, r
		if t.offset > size || t.Bytes > size-t.offset {
			return nil, fmt.Errorf("%w: gguf tensor %q: bytes [%d,%d) lie outside the file's %d (truncated? fetch it again)", ErrFormat, name, t.offset, t.offset+t.Bytes, size)
		}
		g.tensors[name] = t
	}
	return g, nil
}

// Tensors lists the file's tensors in file order. Shapes are row-major, the
// reverse of GGUF's own order.
func (g *GGUF) Tensors() []TensorInfo {
	out := make([]TensorInfo, len(g.names))
	for i, n := range g.names {
		out[i] = g.tensors[n]
	}
	return out
}

// ReadF32 dequantises a tensor of the given row-major shape into dst.
func (g *GGUF) ReadF32(name string, shape []int, dst []float32) error {
	t, ok := g.tensors[name]
	if !ok {
		return fmt.Errorf("%w: tensor %q is missing", ErrFormat, name)
	}
	if !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("%w: tensor %q has shape %v, the metadata wants %v", ErrFormat, name, t.Shape, shape)
	}
	q, ok := ggufTypes[t.DType]
	if !ok {
		return fmt.Errorf("%w: tensor %q: %w", ErrFormat, name, refuseGGUF(t.DType))
	}
	if len(dst) != t.Len() {
		return fmt.Errorf("model: read tensor %q: shape %v has %d elements, the destination %d", name, shape, t.Len(), len(dst))
	}
	if err := readBlocks(t.file, t.offset, q, dst, nil); err != nil {
		return fmt.Errorf("model: read tensor %q: %w", name, err)
	}
	return nil
}

// ggufDecoder reads the header with a sticky error and never past the file.
type ggufDecoder struct {
	r    *bufio.Reader
	left int64
	err  error
}

func (d *ggufDecoder) full(b []byte) {
	if d.err != nil {
		return
	}
	if int64(len(b)) > d.left {
		d.err = fmt.Errorf("%d bytes wanted, %d left (truncated?)", len(b), d.left)
		return
	}
	_, d.err = io.ReadFull(d.r, b)
	d.left -= int64(len(b))
}

func (d *ggufDecoder) u32() uint32 {
	var b [4]byte
	d.full(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (d *ggufDecoder) u64() uint64 {
	var b [8]byte
	d.full(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (d *ggufDecoder) str() string {
	n := d.u64()
	if d.err == nil && (n > ggufMaxString || int64(n) > d.left) {
		d.err = fmt.Errorf("string of %d bytes, %d left", n, d.left)
	}
	if d.err != nil {
		return ""
	}
	b := make([]byte, n)
	d.full(b)
	return string(b)
}

// scalar reads one value of type typ and returns it widened.
func (d *ggufDecoder) scalar(typ uint32) any {
	sizes := [...]int{ggufU8: 1, ggufI8: 1, ggufU16: 2, ggufI16: 2, ggufU32: 4, ggufI32: 4, ggufF32: 4, ggufBool: 1, ggufU64: 8, ggufI64: 8, ggufF64: 8}
	if typ == ggufString {
		return d.str()
	}
	if int(typ) >= len(sizes) || sizes[typ] == 0 {
		if d.err == nil {
			d.err = fmt.Errorf("unknown value type %d", typ)
		}
		return nil
	}
	var b [8]byte
	d.full(b[:sizes[typ]])
	v := binary.LittleEndian.Uint64(b[:])
	switch typ {
	case ggufI8:
		return int64(int8(v))
	case ggufI16:
		return int64(int16(v))
	case ggufI32:
		return int64(int32(v))
	case ggufI64:
		return int64(v)
	case ggufF32:
		return shortest(math.Float32frombits(uint32(v)))
	case ggufF64:
		return math.Float64frombits(v)
	case ggufBool:
		return v != 0
	}
	return v
}

func (d *ggufDecoder) value(typ uint32) any {
	if typ != ggufArray {
		return d.scalar(typ)
	}
	elem, n := d.u32(), d.u64()
	// Every element takes at least one byte, so n is bounded by the file.
	if d.err == nil && int64(n) > d.left || int64(n) < 0 {
		d.err = fmt.Errorf("array of %d elements, %d bytes left", n, d.left)
	}
	if d.err != nil {
		return nil
	}
	switch elem {
	case ggufString:
		return ggufSlice[string](d, elem, n)
	case ggufF32, ggufF64:
		return ggufSlice[float64](d, elem, n)
	case ggufBool:
		return ggufSlice[bool](d, elem, n)
	case ggufI8, ggufI16, ggufI32, ggufI64:
		return ggufSlice[int64](d, elem, n)
	case ggufU8, ggufU16, ggufU32, ggufU64:
		return ggufSlice[uint64](d, elem, n)
	}
	d.err = fmt.Errorf("arrays of value type %d are not implemented", elem)
	return nil
}

func ggufSlice[T any](d *ggufDecoder, elem uint32, n uint64) []T {
	out := make([]T, 0, min(n, 1<<16)) // grows only as data really arrives
	for range n {
		v := d.scalar(elem)
		if d.err != nil {
			return nil
		}
		out = append(out, v.(T))
	}
	return out
}

func (d *ggufDecoder) tensor() (TensorInfo, error) {
	t := TensorInfo{Name: d.str()}
	dims := d.u32()
	if d.err == nil && (dims == 0 || dims > ggufMaxDims) {
		return t, fmt.Errorf("%d dimensions, want 1 to %d", dims, ggufMaxDims)
	}
	elems := int64(1)
	for range min(dims, ggufMaxDims) {
		n := d.u64()
		if d.err == nil && (n == 0 || n > ggufMaxDim || elems > ggufMaxDim/int64(n)) {
			return t, fmt.Errorf("impossible dimension %d", n)
		}
		if d.err != nil {
			return t, d.err
		}
		elems *= int64(n)
		t.Shape = append(t.Shape, int(n))
	}
	slices.Reverse(t.Shape)
	typ, offset := d.u32(), d.u64()
	if d.err != nil {
		return t, d.err
	}
	if offset > math.MaxInt64/2 {
		return t, fmt.Errorf("impossible offset %d", offset)
	}
	t.offset = int64(offset)
	name, ok := ggufTypeNames[typ]
	if !ok {
		// Kept so that Inspect can list it; reading it is refused.
		t.DType = fmt.Sprintf("ggml type %d", typ)
		return t, nil
	}
	t.DType = name
	if q, ok := ggufTypes[name]; ok {
		if t.Shape[len(t.Shape)-1]%q.elems != 0 {
			return t, fmt.Errorf("row of %d elements is no multiple of %s's block of %d", t.Shape[len(t.Shape)-1], name, q.elems)
		}
		t.Bytes = elems / int64(q.elems) * int64(q.bytes)
	}
	return t, nil
}
