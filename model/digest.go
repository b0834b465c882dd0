package model

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"lukechampine.com/blake3"
)

// weightsDigest is "blake3:<hex>" over the configuration and the f32 tensors
// in FullLayout's order. Two files that dequantise to the same numbers have the
// same digest.
func weightsDigest(c Config, w *Weights) string {
	h := blake3.New(32, nil)
	conf, err := json.Marshal(c)
	if err != nil {
		panic("model: configuration that Validate refuses: " + err.Error())
	}
	h.Write(conf)
	buf := make([]byte, 0, 1<<20)
	for _, s := range slots(c, w) {
		fmt.Fprintf(h, "\n%s %v\n", s.name, s.shape)
		data := *s.data
		for len(data) > 0 {
			n := min(len(data), cap(buf)/4)
			buf = buf[:0]
			for _, v := range data[:n] {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
			}
			h.Write(buf)
			data = data[n:]
		}
	}
	return "blake3:" + hex.EncodeToString(h.Sum(nil))
}
