package table

import (
	"encoding/binary"
	"math"
)

// minHeapKey orders by priority, then by insertion.
func minHeapKey(e Entry) []byte {
	return append(binary.BigEndian.AppendUint64(nil, sortable(e.Priority)), fifoKey(e)...)
}

// sortable maps finite floats to integers of the same order; -0 is 0.
func sortable(f float64) uint64 {
	b := math.Float64bits(f + 0)
	if b>>63 != 0 {
		return ^b
	}
	return b | 1<<63
}
