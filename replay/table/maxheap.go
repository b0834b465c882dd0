package table

import "encoding/binary"

// maxHeapKey orders by priority, highest first, then by insertion.
func maxHeapKey(e Entry) []byte {
	return append(binary.BigEndian.AppendUint64(nil, ^sortable(e.Priority)), fifoKey(e)...)
}
