package table

import "encoding/binary"

// lifoKey orders by insertion, newest first.
func lifoKey(e Entry) []byte { return binary.BigEndian.AppendUint64(nil, ^e.Seq) }
