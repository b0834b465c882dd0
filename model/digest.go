package model

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"lukechampine.com/blake3"
)

// digestChunk is how many numbers of a tensor are read at a time.
const digestChunk = 1 << 18

// weightsDigest is "blake3:<hex>" over the configuration and the f32 tensors
// in FullLayout's order. Two files that dequantise to the same numbers have the
// same digest.
func weightsDigest(c Config, w *Weights) string {
	d := newDigest(c)
	for _, s := range slots(c, w) {
		d.tensor(s)
		d.numbers(*s.data)
	}
	return d.sum()
}

// digest is weightsDigest of s, in one pass over the files in bounded memory:
// one chunk is read while the one before is hashed. done, unless nil, is told of
// bytes read.
func (s *stored) digest(done func(n int64)) (string, error) {
	d := newDigest(s.c)
	var bufs [2][]float32
	var hashing sync.WaitGroup
	defer hashing.Wait()
	turn := 0
	for i := range s.tensors {
		t := &s.tensors[i]
		width := t.len() / t.rows()
		step := t.rows()
		if t.permuted == 0 {
			step = max(1, min(step, digestChunk/width))
		}
		for lo := 0; lo < t.rows(); lo += step {
			hi := min(t.rows(), lo+step)
			n := (hi - lo) * width
			bufs[turn] = slices.Grow(bufs[turn][:0], n)[:n]
			part := bufs[turn]
			if err := t.read(lo, hi, part, done); err != nil {
				return "", err
			}
			hashing.Wait()
			if lo == 0 {
				d.tensor(t.slot)
			}
			hashing.Go(func() { d.numbers(part) })
			turn = 1 - turn
		}
	}
	hashing.Wait()
	return d.sum(), nil
}

// digester hashes what weightsDigest says.
type digester struct {
	h   *blake3.Hasher
	buf []byte
}

func newDigest(c Config) *digester {
	d := &digester{h: blake3.New(32, nil)}
	conf, err := json.Marshal(c)
	if err != nil {
		panic("model: configuration that Validate refuses: " + err.Error())
	}
	d.h.Write(conf)
	return d
}

func (d *digester) tensor(s slot) { fmt.Fprintf(d.h, "\n%s %v\n", s.name, s.shape) }

func (d *digester) numbers(x []float32) {
	if littleEndian {
		d.h.Write(floatBytes(x))
		return
	}
	for part := range slices.Chunk(x, 1<<18) {
		d.buf = encodeF32(d.buf[:0], part)
		d.h.Write(d.buf)
	}
}

func (d *digester) sum() string { return "blake3:" + hex.EncodeToString(d.h.Sum(nil)) }
