package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func writeST(t testing.TB, tensors []Tensor, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, WriteSafeTensors(&b, tensors, meta))
	return b.Bytes()
}

func readST(data []byte) (*SafeTensors, error) {
	return ReadSafeTensors(bytes.NewReader(data), int64(len(data)))
}

func TestSafeTensorsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dtype := rapid.SampledFrom([]DType{"", F32, F16, BF16}).Draw(t, "dtype")
		rows, cols := rapid.IntRange(0, 4).Draw(t, "rows"), rapid.IntRange(1, 5).Draw(t, "cols")
		data := make([]float32, rows*cols)
		for i := range data {
			data[i] = float32(rapid.IntRange(-128, 128).Draw(t, "v")) / 4 // exact in all three
		}
		in := []Tensor{{Name: "b", Shape: []int{rows, cols}, DType: dtype, Data: data}, {Name: "a\"<é", Shape: []int{}, Data: []float32{7}}}
		var buf bytes.Buffer
		if err := WriteSafeTensors(&buf, in, map[string]string{"k": "v"}); err != nil {
			t.Fatal(err)
		}
		st, err := readST(buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if st.Metadata["k"] != "v" {
			t.Fatal(st.Metadata)
		}
		for _, x := range in {
			got := make([]float32, len(x.Data))
			if err := st.ReadF32(x.Name, x.Shape, got); err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if got[i] != x.Data[i] {
					t.Fatalf("%s[%d] = %v, want %v", x.Name, i, got[i], x.Data[i])
				}
			}
		}
	})
}

// Every half is exact in f32, and rounding goes to the nearest, ties to even.
func TestHalfConversions(t *testing.T) {
	for i := range 1 << 16 {
		f := halfToFloat(uint16(i))
		if math.IsNaN(float64(f)) {
			require.Equal(t, 0x7c00, i&0x7c00)
			require.True(t, math.IsNaN(float64(halfToFloat(floatToHalf(f)))))
			continue
		}
		require.Equal(t, uint16(i), floatToHalf(f), "%#04x = %v", i, f)
		b := math.Float32frombits(uint32(i) << 16)
		if !math.IsNaN(float64(b)) {
			require.Equal(t, uint16(i), floatToBF16(b))
		}
	}
	for _, c := range []struct {
		in   float32
		want uint16
	}{
		{1 + 1.0/2048, 0x3c00}, {1 + 3.0/2048, 0x3c02}, {65519, 0x7bff}, {65520, 0x7c00}, {1e9, 0x7c00}, {-1e9, 0xfc00},
		{1.0 / (1 << 25), 0}, {1.5 / (1 << 24), 2}, {6.1035e-5, 0x400}, {0x1p-24, 1},
	} {
		require.Equal(t, c.want, floatToHalf(c.in), "%v", c.in)
	}
	require.Equal(t, uint16(0x3f80), floatToBF16(1+1.0/256))
	require.Equal(t, uint16(0x3f82), floatToBF16(1+3.0/256))
	require.True(t, math.IsNaN(float64(math.Float32frombits(uint32(floatToBF16(math.Float32frombits(0x7f800001)))<<16))))
}

func stFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestSafeTensorsRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		file []byte
		want string
	}{
		"empty":            {nil, "too short"},
		"header too long":  {stFile("{}", 0)[:9], "header length 2 exceeds"},
		"huge header":      {binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "exceeds"},
		"not JSON":         {stFile("{x", 0), "not JSON"},
		"outside":          {stFile(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 4), `tensor "w": bytes [0,8) lie outside`},
		"size and shape":   {stFile(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), `tensor "w": shape [2] of F32 needs 8 bytes, has 4`},
		"negative shape":   {stFile(`{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}`, 0), "impossible shape"},
		"overflow":         {stFile(`{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), "impossible shape"},
		"no offsets":       {stFile(`{"w":{"dtype":"F32","shape":[1]}}`, 4), "data_offsets must be"},
		"reversed offsets": {stFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4), "lie outside"},
		"hole":             {stFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "hole or overlap"},
		"overlap":          {stFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), "hole or overlap"},
		"trailing bytes":   {stFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 5), "tensors end at byte"},
		"bad metadata":     {stFile(`{"__metadata__":{"a":1}}`, 0), "__metadata__"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readST(tc.file)
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
	st, err := readST(stFile(`{"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}`, 4))
	require.NoError(t, err)
	dst := make([]float32, 4)
	require.ErrorContains(t, st.ReadF32("w", []int{4}, dst), `tensor "w": dtype I8 holds integers`)
	require.ErrorContains(t, st.ReadF32("w", []int{2, 2}, dst), `tensor "w" has shape [4]`)
	require.ErrorContains(t, st.ReadF32("v", []int{4}, dst), `tensor "v" is missing`)

	var b bytes.Buffer
	require.ErrorContains(t, WriteSafeTensors(&b, []Tensor{{Name: "w", Shape: []int{2}, Data: []float32{1}}}, nil), `tensor "w": shape [2]`)
	require.ErrorContains(t, WriteSafeTensors(&b, []Tensor{{Name: "w", Shape: []int{0}}, {Name: "w", Shape: []int{0}}}, nil), "taken")
	require.ErrorContains(t, WriteSafeTensors(&b, []Tensor{{Name: "w", Shape: []int{0}, DType: "Q4"}}, nil), `"Q4"`)
}

// A file cut anywhere is refused, never misread.
func TestTruncatedModelIsRefused(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(tinyDir, "model.safetensors"))
	require.NoError(t, err)
	conf, err := os.ReadFile(filepath.Join(tinyDir, "config.json"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), conf, 0o644))
	for _, n := range []int{0, 7, 8, 100, 2000, len(whole) - 1} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), whole[:n], 0o644))
		_, err := Open(dir)
		require.ErrorIs(t, err, ErrFormat, "%d bytes", n)
		require.ErrorContains(t, err, "model.safetensors")
	}
}

func FuzzSafeTensors(f *testing.F) {
	f.Add(stFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	f.Add(stFile(`{"__metadata__":{"k":"v"},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}`, 4))
	f.Add(stFile(`{}`, 0))
	f.Add(stFile(`{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Add([]byte(strings.Repeat("\xff", 64)))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := readST(data)
		if err != nil {
			return
		}
		for _, x := range st.Tensors() {
			if x.Len() > len(data) {
				if DType(x.DType).size() > 0 {
					t.Fatalf("%+v of %d bytes", x, len(data))
				}
				continue
			}
			_ = st.ReadF32(x.Name, x.Shape, make([]float32, x.Len()))
		}
		_, _ = DecodeAdapter(data)
	})
}

// Eight-bit floats and packed integers are refused by name when read, with a
// way out.
func TestQuantisedSafeTensorsAreRefused(t *testing.T) {
	for dtype, want := range map[string]string{
		"F8_E4M3": "is a quantisation whose scales", "F8_E5M2": "is a quantisation whose scales", "F8_E8M0": "is a quantisation whose scales", "F4": "is a quantisation whose scales",
		"I64": "holds integers", "U8": "holds integers", "BOOL": "holds integers", "C64": "is not known",
	} {
		st, err := readST(stFile(`{"w":{"dtype":"`+dtype+`","shape":[4],"data_offsets":[0,4]}}`, 4))
		require.NoError(t, err)
		err = st.ReadF32("w", []int{4}, make([]float32, 4))
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, `tensor "w": dtype `+dtype+" "+want)
	}
}
