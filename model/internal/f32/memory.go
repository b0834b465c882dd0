package f32

import (
	"runtime"
	"unsafe"
)

// Memory is where matrices that live long keep their numbers: outside Go's
// heap, whose collector would else let as many bytes of garbage gather as there
// are weights, and in huge pages where the system has them. It is given back
// when neither it nor a matrix in it is reachable any more. A nil Memory is Go's
// heap. It belongs to one goroutine; matrices in it are for all.
type Memory struct {
	free []byte    // rest of the newest slab
	all  *[][]byte // slabs
}

const (
	slabBytes   = 64 << 20
	alignment   = 64      // of a matrix: a cache line
	hugeRounded = 2 << 20 // of a slab: a huge page
)

// NewMemory returns empty memory.
func NewMemory() *Memory {
	m := &Memory{all: new([][]byte)}
	runtime.AddCleanup(m, unmapAll, m.all)
	return m
}

// Free gives the memory back now: the collector does not see its size and may
// take minutes. Nothing in it may be used any more.
func (m *Memory) Free() {
	unmapAll(m.all)
	m.free = nil
}

func unmapAll(slabs *[][]byte) {
	for _, slab := range *slabs {
		unmapMemory(slab)
	}
	*slabs = nil
}

// take returns n zeroed bytes, aligned to a cache line.
func (m *Memory) take(n int) []byte {
	n = (n + alignment - 1) &^ (alignment - 1)
	if n > len(m.free) {
		size := max(slabBytes, (n+hugeRounded-1)&^(hugeRounded-1)) + hugeRounded
		slab, err := mapMemory(size)
		if err != nil {
			return make([]byte, n) // the heap is as good, only larger
		}
		*m.all = append(*m.all, slab)
		skip := -int(uintptr(unsafe.Pointer(&slab[0]))) & (hugeRounded - 1)
		m.free = slab[skip:]
	}
	out := m.free[:n:n]
	m.free = m.free[n:]
	return out
}

// Floats makes n zeroed numbers, which last as long as m is reachable.
func (m *Memory) Floats(n int) []float32 { return numbers[float32](m, n) }

// numbers makes n zeroed numbers in m, or on Go's heap when m is nil.
func numbers[T byte | uint16 | float32](m *Memory, n int) []T {
	if m == nil || n == 0 {
		return make([]T, n)
	}
	var one T
	b := m.take(n * int(unsafe.Sizeof(one)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
