package table

import "encoding/binary"

// fifoKey orders by insertion.
func fifoKey(e Entry) []byte { return binary.BigEndian.AppendUint64(nil, e.Seq) }
