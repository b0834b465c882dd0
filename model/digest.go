package model

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

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
	var buf []byte
	for _, s := range slots(c, w) {
		fmt.Fprintf(h, "\n%s %v\n", s.name, s.shape)
		if littleEndian {
			h.Write(floatBytes(*s.data))
			continue
		}
		for part := range slices.Chunk(*s.data, 1<<18) {
			buf = encodeF32(buf[:0], part)
			h.Write(buf)
		}
	}
	return "blake3:" + hex.EncodeToString(h.Sum(nil))
}
