package model

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// quantRecord is one record of testdata/quants.bin, which
// scripts/golden_quants.py makes and describes.
type quantRecord struct {
	name   string
	raw    []byte
	floats []float32
}

func readQuantRecords(t testing.TB) []quantRecord {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "quants.bin"))
	require.NoError(t, err)
	var out []quantRecord
	for len(b) > 0 {
		var r quantRecord
		n := int(b[0])
		r.name, b = string(b[1:1+n]), b[1+n:]
		n = int(binary.LittleEndian.Uint32(b))
		r.raw, b = b[4:4+n], b[4+n:]
		n = int(binary.LittleEndian.Uint32(b))
		r.floats = make([]float32, n)
		decodeF32(r.floats, b[4:])
		b = b[4+4*n:]
		out = append(out, r)
	}
	return out
}

// Bit for bit what the gguf package computes.
func TestQuantsAgainstGGUFPackage(t *testing.T) {
	decoded, encoded := map[string]bool{"F32": true, "F16": true, "BF16": true, "F64": true, "Q8_K": true}, map[string]bool{"F32": true, "F16": true, "BF16": true}
	for _, r := range readQuantRecords(t) {
		if name, ok := strings.CutPrefix(r.name, ">"); ok {
			encoded[name] = true
			require.Equal(t, r.raw, ggufTypes[name].encode(nil, r.floats), r.name)
			continue
		}
		decoded[r.name] = true
		q := ggufTypes[r.name]
		require.Equal(t, len(r.floats)/q.elems, len(r.raw)/q.bytes, r.name)
		got := make([]float32, len(r.floats))
		q.decode(got, r.raw)
		for i := range got {
			require.Equal(t, math.Float32bits(r.floats[i]), math.Float32bits(got[i]), "%s number %d: %v, want %v", r.name, i, got[i], r.floats[i])
		}
	}
	for name, q := range ggufTypes {
		require.True(t, decoded[name], "%s has no golden blocks", name)
		require.Equal(t, encoded[name], q.encode != nil, "%s: quantiser and golden blocks", name)
		require.Equal(t, name, ggufTypeNames[ggufTypeID(name)])
	}
}

func TestQ8K(t *testing.T) {
	b := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.5))
	for i := range superBlock {
		b = append(b, byte(i-128))
	}
	b = append(b, make([]byte, 32)...)
	got := make([]float32, superBlock)
	dequantQ8K(got, b)
	for i, v := range got {
		require.Equal(t, 0.5*float32(int8(i-128)), v)
	}
}

func TestF64RoundsToNearest(t *testing.T) {
	var b []byte
	in := []float64{1, 1 + 1e-9, -0.1, math.MaxFloat64, math.Inf(-1)}
	for _, v := range in {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	got := make([]float32, len(in))
	decodeF64(got, b)
	require.Equal(t, []float32{1, 1, -0.1, float32(math.Inf(1)), float32(math.Inf(-1))}, got)
}

func BenchmarkDequant(b *testing.B) {
	for _, name := range strings.Split(haveTypes(false), ", ") {
		q := ggufTypes[name]
		n := 1 << 18
		src, dst := make([]byte, n/q.elems*q.bytes), make([]float32, n)
		for i := range src {
			src[i] = byte(i*7) & 0x3f
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				q.decode(dst, src)
			}
			b.ReportMetric(float64(4*n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "out-MB/s")
		})
	}
}
