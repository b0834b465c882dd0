package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
)

// ErrFormat marks a weight, tokenizer or adapter file that is truncated,
// corrupt, or of a kind this package doesn't read. Errors that wrap it name
// the file's offending part.
var ErrFormat = errors.New("model: bad file")

// maxHeader bounds a safetensors header, as the format's reference reader does.
const maxHeader = 100 << 20

// TensorInfo describes a stored tensor.
type TensorInfo struct {
	Name  string
	DType string // as spelled in the file: F32, BF16, Q4_1, ...
	Shape []int  // row-major, outermost first
	Bytes int64  // stored size

	offset int64
	file   io.ReaderAt
}

// Len is the number of elements.
func (t TensorInfo) Len() int { return shapeLen(t.Shape) }

func shapeLen(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// SafeTensors reads one safetensors file: 8 bytes of little-endian header
// length, a JSON header of name -> {dtype, shape, data_offsets}, then the data.
// Reads go through the ReaderAt; nothing is held in memory but the header.
type SafeTensors struct {
	// Metadata is the header's __metadata__ map; nil when absent.
	Metadata map[string]string

	tensors map[string]TensorInfo
	names   []string
}

// ReadSafeTensors checks the header of a file of size bytes: every tensor lies
// inside the file, sizes agree with shapes, and the data has no holes or
// overlaps. Errors wrap ErrFormat and name the tensor.
func ReadSafeTensors(r io.ReaderAt, size int64) (*SafeTensors, error) {
	var lead [8]byte
	if size < 8 {
		return nil, fmt.Errorf("%w: safetensors: %d bytes, too short for a header length (truncated?)", ErrFormat, size)
	}
	if _, err := r.ReadAt(lead[:], 0); err != nil {
		return nil, fmt.Errorf("model: read safetensors header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(lead[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("%w: safetensors: header length %d exceeds the file's %d bytes or the limit %d (truncated, or not safetensors)", ErrFormat, n, size, maxHeader)
	}
	head := make([]byte, n)
	if _, err := r.ReadAt(head, 8); err != nil && !(err == io.EOF && int64(n) == size-8) {
		return nil, fmt.Errorf("model: read safetensors header: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(head, &raw); err != nil {
		return nil, fmt.Errorf("%w: safetensors header is not JSON: %v", ErrFormat, err)
	}
	s := &SafeTensors{tensors: make(map[string]TensorInfo, len(raw))}
	if m, ok := raw["__metadata__"]; ok {
		if err := json.Unmarshal(m, &s.Metadata); err != nil {
			return nil, fmt.Errorf("%w: safetensors __metadata__: %v", ErrFormat, err)
		}
		delete(raw, "__metadata__")
	}
	dataStart, dataLen := 8+int64(n), size-8-int64(n)
	for name, m := range raw {
		t, err := parseTensorInfo(name, m, dataLen)
		if err != nil {
			return nil, err
		}
		t.offset, t.file = t.offset+dataStart, r
		s.tensors[name] = t
		s.names = append(s.names, name)
	}
	sort.Slice(s.names, func(i, j int) bool {
		a, b := s.tensors[s.names[i]], s.tensors[s.names[j]]
		if a.offset != b.offset {
			return a.offset < b.offset
		}
		if a.Bytes != b.Bytes {
			return a.Bytes < b.Bytes // empty tensors first
		}
		return a.Name < b.Name
	})
	at := dataStart
	for _, name := range s.names {
		t := s.tensors[name]
		if t.offset != at {
			return nil, fmt.Errorf("%w: safetensors tensor %q starts at byte %d of the data, want %d (hole or overlap)", ErrFormat, name, t.offset-dataStart, at-dataStart)
		}
		at += t.Bytes
	}
	if at != size {
		return nil, fmt.Errorf("%w: safetensors: tensors end at byte %d of a file of %d bytes", ErrFormat, at, size)
	}
	return s, nil
}

func parseTensorInfo(name string, raw json.RawMessage, dataLen int64) (TensorInfo, error) {
	var h struct {
		DType   DType    `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets *[]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw, &h); err != nil {
		return TensorInfo{}, fmt.Errorf("%w: safetensors tensor %q: %v", ErrFormat, name, err)
	}
	if h.Offsets == nil || len(*h.Offsets) != 2 {
		return TensorInfo{}, fmt.Errorf("%w: safetensors tensor %q: data_offsets must be [begin, end]", ErrFormat, name)
	}
	begin, end := (*h.Offsets)[0], (*h.Offsets)[1]
	if begin < 0 || end < begin || end > dataLen {
		return TensorInfo{}, fmt.Errorf("%w: safetensors tensor %q: bytes [%d,%d) lie outside the %d bytes of data (truncated file? fetch it again)", ErrFormat, name, begin, end, dataLen)
	}
	t := TensorInfo{Name: name, DType: string(h.DType), Bytes: end - begin, offset: begin}
	elems := int64(1)
	for _, d := range h.Shape {
		if d < 0 || (d > 0 && elems > math.MaxInt32*int64(64)/d) {
			return TensorInfo{}, fmt.Errorf("%w: safetensors tensor %q: impossible shape %v", ErrFormat, name, h.Shape)
		}
		elems *= d
		t.Shape = append(t.Shape, int(d))
	}
	// A type we cannot decode is refused when the tensor is read, not here.
	if sz := h.DType.size(); sz > 0 && elems*int64(sz) != t.Bytes {
		return TensorInfo{}, fmt.Errorf("%w: safetensors tensor %q: shape %v of %s needs %d bytes, has %d", ErrFormat, name, h.Shape, h.DType, elems*int64(sz), t.Bytes)
	}
	return t, nil
}

// Tensors lists what the file holds, in file order.
func (s *SafeTensors) Tensors() []TensorInfo {
	out := make([]TensorInfo, len(s.names))
	for i, n := range s.names {
		out[i] = s.tensors[n]
	}
	return out
}

// Has reports whether the file holds a tensor.
func (s *SafeTensors) Has(name string) bool { _, ok := s.tensors[name]; return ok }

// ReadF32 reads a tensor of the given shape into dst, converting to f32.
// len(dst) must be the product of shape.
func (s *SafeTensors) ReadF32(name string, shape []int, dst []float32) error {
	t, ok := s.tensors[name]
	if !ok {
		return fmt.Errorf("%w: tensor %q is missing", ErrFormat, name)
	}
	if !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("%w: tensor %q has shape %v, the configuration wants %v", ErrFormat, name, t.Shape, shape)
	}
	q, ok := plainTypes[DType(t.DType)]
	if !ok {
		return fmt.Errorf("%w: tensor %q: %w", ErrFormat, name, DType(t.DType).refuse())
	}
	if len(dst) != t.Len() {
		return fmt.Errorf("model: read tensor %q: shape %v has %d elements, the destination %d", name, shape, t.Len(), len(dst))
	}
	if err := readBlocks(t.file, t.offset, q, dst, nil); err != nil {
		return fmt.Errorf("model: read tensor %q: %w", name, err)
	}
	return nil
}

// Tensor is a named f32 tensor, written as DType (zero = F32).
type Tensor struct {
	Name  string
	Shape []int
	DType DType
	Data  []float32
}

// WriteSafeTensors writes tensors in the given order. The bytes depend on the
// arguments only, so equal content gives equal files.
func WriteSafeTensors(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	var head bytes.Buffer
	head.WriteByte('{')
	if len(metadata) > 0 {
		m, err := json.Marshal(metadata) // keys come out sorted
		if err != nil {
			return fmt.Errorf("model: encode safetensors metadata: %w", err)
		}
		head.WriteString(`"__metadata__":`)
		head.Write(m)
	}
	offset := 0
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		if seen[t.Name] || t.Name == "__metadata__" {
			return fmt.Errorf("model: write safetensors: tensor name %q is taken", t.Name)
		}
		seen[t.Name] = true
		d := t.dtype()
		if plainTypes[d].encode == nil {
			return fmt.Errorf("model: write tensor %q: dtype %q is not written (have F32, F16, BF16)", t.Name, d)
		}
		if shapeLen(t.Shape) != len(t.Data) {
			return fmt.Errorf("model: write tensor %q: shape %v has %d elements, data %d", t.Name, t.Shape, shapeLen(t.Shape), len(t.Data))
		}
		if head.Len() > 1 {
			head.WriteByte(',')
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return fmt.Errorf("model: encode tensor name %q: %w", t.Name, err)
		}
		shape, _ := json.Marshal(append([]int{}, t.Shape...))
		end := offset + len(t.Data)*d.size()
		fmt.Fprintf(&head, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, d, shape, offset, end)
		offset = end
	}
	head.WriteByte('}')
	for head.Len()%8 != 0 { // keep the data aligned, as the reference writer does
		head.WriteByte(' ')
	}
	var lead [8]byte
	binary.LittleEndian.PutUint64(lead[:], uint64(head.Len()))
	if _, err := w.Write(lead[:]); err != nil {
		return fmt.Errorf("model: write safetensors: %w", err)
	}
	if _, err := w.Write(head.Bytes()); err != nil {
		return fmt.Errorf("model: write safetensors: %w", err)
	}
	var buf []byte
	const chunk = 1 << 18
	for _, t := range tensors {
		for at := 0; at < len(t.Data); at += chunk {
			var err error
			if buf, err = t.dtype().encode(buf[:0], t.Data[at:min(at+chunk, len(t.Data))]); err != nil {
				return fmt.Errorf("model: write tensor %q: %w", t.Name, err)
			}
			if _, err = w.Write(buf); err != nil {
				return fmt.Errorf("model: write tensor %q: %w", t.Name, err)
			}
		}
	}
	return nil
}

func (t Tensor) dtype() DType {
	if t.DType == "" {
		return F32
	}
	return t.DType
}
