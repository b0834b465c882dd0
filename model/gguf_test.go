package model

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// ggufFile writes small GGUF files for tests.
type ggufFile struct {
	meta    map[string]any
	tensors []ggufTensor
}

type ggufTensor struct {
	name  string
	typ   uint32
	shape []int // row-major
	data  []byte
}

func (g ggufFile) bytes() []byte {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = le.AppendUint64(b, uint64(len(g.tensors)))
	b = le.AppendUint64(b, uint64(len(g.meta)))
	for _, k := range slices.Sorted(maps.Keys(g.meta)) {
		b = str(b, k)
		switch v := g.meta[k].(type) {
		case int:
			b = le.AppendUint32(le.AppendUint32(b, ggufU32), uint32(v))
		case float32:
			b = le.AppendUint32(le.AppendUint32(b, ggufF32), math.Float32bits(v))
		case bool:
			b = append(le.AppendUint32(b, ggufBool), map[bool]byte{true: 1}[v])
		case string:
			b = str(le.AppendUint32(b, ggufString), v)
		case []string:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufString), uint64(len(v)))
			for _, s := range v {
				b = str(b, s)
			}
		case []int32:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufI32), uint64(len(v)))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		default:
			panic(k)
		}
	}
	off := 0
	var data []byte
	for _, t := range g.tensors {
		b = le.AppendUint32(str(b, t.name), uint32(len(t.shape)))
		for _, d := range slices.Backward(t.shape) {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint64(le.AppendUint32(b, t.typ), uint64(off))
		data = append(data, t.data...)
		for len(data)%32 != 0 {
			data = append(data, 0)
		}
		off = len(data)
	}
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return append(b, data...)
}

// tinyGGUF is the tiny model as llama.cpp's converter would write it.
func tinyGGUF(t testing.TB, m *Model) ggufFile {
	t.Helper()
	c := m.Config
	g := ggufFile{meta: map[string]any{
		"general.architecture": "llama", "llama.embedding_length": c.HiddenSize, "llama.block_count": c.NumHiddenLayers,
		"llama.feed_forward_length": c.IntermediateSize, "llama.attention.head_count": c.NumAttentionHeads,
		"llama.attention.head_count_kv": c.NumKeyValueHeads, "llama.context_length": c.MaxPositionEmbeddings,
		"llama.attention.layer_norm_rms_epsilon": float32(c.RMSNormEps), "llama.rope.freq_base": float32(c.RopeTheta),
		"llama.attention.key_length": c.HeadDim, "llama.attention.value_length": c.HeadDim, "llama.rope.dimension_count": c.HeadDim,
		"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
	}}
	for _, s := range slots(c, m.Weights) {
		w := slices.Clone(*s.data)
		name := s.gguf
		if bytes.Contains([]byte(name), []byte("attn_q.")) || bytes.Contains([]byte(name), []byte("attn_k.")) {
			// The converter's permutation: row 2i+half of a head from row half*d/2+i.
			cols := s.shape[1]
			for r := range s.shape[0] {
				h, i := r/c.HeadDim, r%c.HeadDim
				from := h*c.HeadDim + i%2*(c.HeadDim/2) + i/2
				copy(w[r*cols:(r+1)*cols], (*s.data)[from*cols:(from+1)*cols])
			}
		}
		b, err := F32.encode(nil, w)
		require.NoError(t, err)
		g.tensors = append(g.tensors, ggufTensor{name, 0, s.shape, b})
	}
	return g
}

func openGGUFBytes(t testing.TB, data []byte) (*Model, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	m, err := Open(path)
	if err == nil {
		loaded(t, m)
	}
	return m, err
}

// The same numbers from both formats: same weights, configuration and digest.
func TestGGUFEqualsSafetensors(t *testing.T) {
	m := tinyModel(t)
	got, err := openGGUFBytes(t, tinyGGUF(t, m).bytes())
	require.NoError(t, err)
	require.Equal(t, m.Config, got.Config)
	require.Equal(t, m.Weights, got.Weights)
	require.Equal(t, m.Digest, got.Digest)
	require.Equal(t, []int32{2}, got.StopIDs)
	require.Equal(t, "m", got.Name)
	require.Nil(t, got.Tokenizer)
	require.Same(t, &got.Weights.Embed[0], &got.Weights.Head[0])

	// With an output tensor the head is its own.
	g := tinyGGUF(t, m)
	head, err := F32.encode(nil, make([]float32, len(m.Weights.Embed)))
	require.NoError(t, err)
	g.tensors = append(g.tensors, ggufTensor{"output.weight", 0, []int{61, 24}, head})
	got, err = openGGUFBytes(t, g.bytes())
	require.NoError(t, err)
	require.False(t, got.Config.TieWordEmbeddings)
	require.NotSame(t, &got.Weights.Embed[0], &got.Weights.Head[0])
}

func TestGGUFDequantisation(t *testing.T) {
	half := func(f float32) []byte { return binary.LittleEndian.AppendUint16(nil, floatToHalf(f)) }
	nibbles := make([]byte, 16)
	for i := range nibbles {
		nibbles[i] = byte(i | (15-i)<<4) // number i is i, number 16+i is 15-i
	}
	q8 := make([]byte, 32)
	for i := range q8 {
		q8[i] = byte(int8(i*8 - 128))
	}
	ramp := make([]float32, 32)
	for i := range ramp {
		ramp[i] = float32(i) - 7.5
	}
	f16, _ := F16.encode(nil, ramp)
	bf16, _ := BF16.encode(nil, ramp)
	at := func(i int) float32 {
		if i < 16 {
			return float32(i)
		}
		return float32(15 - (i - 16))
	}
	for _, tc := range []struct {
		typ  uint32
		data []byte
		want func(i int) float32
	}{
		{1, f16, func(i int) float32 { return ramp[i] }},
		{30, bf16, func(i int) float32 { return ramp[i] }},
		{2, slices.Concat(half(0.5), nibbles), func(i int) float32 { return 0.5 * (at(i) - 8) }},
		{3, slices.Concat(half(0.25), half(-3), nibbles), func(i int) float32 { return 0.25*at(i) - 3 }},
		{8, slices.Concat(half(0.125), q8), func(i int) float32 { return 0.125 * float32(i*8-128) }},
	} {
		name := ggufTypeNames[tc.typ]
		// Two rows, so that blocks follow each other.
		file := ggufFile{tensors: []ggufTensor{{"w", tc.typ, []int{2, 32}, slices.Concat(tc.data, tc.data)}}}.bytes()
		g, err := ReadGGUF(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err, name)
		got := make([]float32, 64)
		require.NoError(t, g.ReadF32("w", []int{2, 32}, got))
		for i, v := range got {
			require.Equal(t, tc.want(i%32), v, "%s[%d]", name, i)
		}
	}
}

func TestGGUFRefusals(t *testing.T) {
	m := tinyModel(t)
	for name, tc := range map[string]struct {
		change func(*ggufFile)
		want   string
	}{
		"architecture":   {func(g *ggufFile) { g.meta["general.architecture"] = "falcon" }, `general.architecture "falcon"`},
		"rope scaling":   {func(g *ggufFile) { g.meta["llama.rope.scaling.type"] = "ntk" }, `llama.rope.scaling.type "ntk"`},
		"missing key":    {func(g *ggufFile) { delete(g.meta, "llama.block_count") }, "llama.block_count is missing"},
		"partial rope":   {func(g *ggufFile) { g.meta["llama.rope.dimension_count"] = 4 }, "partial rope"},
		"layers":         {func(g *ggufFile) { g.meta["llama.block_count"] = 3 }, `tensor "blk.2.attn_norm.weight" is missing`},
		"absurd layers":  {func(g *ggufFile) { g.meta["llama.block_count"] = 1 << 30 }, "llama.block_count is 1073741824, want 1 to 4096"},
		"too few layers": {func(g *ggufFile) { g.meta["llama.block_count"] = 1 }, `tensor "blk.1.`},
		"experts":        {func(g *ggufFile) { g.meta["llama.expert_count"] = 8 }, "llama.expert_used_count is missing"},
		"wrong shape":    {func(g *ggufFile) { g.meta["llama.feed_forward_length"] = 41 }, "blk.0.ffn_gate.weight"},
		"type":           {func(g *ggufFile) { g.tensors[1].typ = 16 }, `tensor "blk.0.attn_norm.weight": type IQ2_XXS is not implemented`},
		"unknown type":   {func(g *ggufFile) { g.tensors[1].typ = 99 }, "ggml type 99"},
		"block size":     {func(g *ggufFile) { g.tensors[1].typ = 8 }, "no multiple of Q8_0's block"},
		"twice":          {func(g *ggufFile) { g.tensors[1].name = g.tensors[0].name }, "appears twice"},
		"alignment":      {func(g *ggufFile) { g.meta["general.alignment"] = 0 }, "general.alignment"},
		"tokenizer kind": {func(g *ggufFile) {
			addTokenizer(g, 61)
			g.meta["tokenizer.ggml.model"] = "rwkv"
		}, `tokenizer.ggml.model "rwkv"`},
		"pre-tokenizer": {func(g *ggufFile) {
			addTokenizer(g, 61)
			g.meta["tokenizer.ggml.pre"] = "nobody-knows"
		}, `tokenizer.ggml.pre "nobody-knows"`},
		"other vocabulary": {func(g *ggufFile) { addTokenizer(g, 70) }, "tokenizer has 70 tokens, the embedding 61 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			g := tinyGGUF(t, m)
			tc.change(&g)
			_, err := openGGUFBytes(t, g.bytes())
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// addTokenizer adds a vocabulary of n tokens: a special, then bytes.
func addTokenizer(g *ggufFile, n int) {
	tokens, types := []string{"<|end|>"}, []int32{ggufTokenControl}
	for i := 1; i < n; i++ {
		tokens, types = append(tokens, string(byteToRune[i+32])), append(types, 1)
	}
	g.meta["tokenizer.ggml.model"], g.meta["tokenizer.ggml.pre"] = "gpt2", "gpt-2"
	g.meta["tokenizer.ggml.tokens"], g.meta["tokenizer.ggml.token_type"] = tokens, types
	g.meta["tokenizer.ggml.merges"] = []string{}
	g.meta["tokenizer.ggml.eos_token_id"], g.meta["tokenizer.ggml.bos_token_id"], g.meta["tokenizer.ggml.add_bos_token"] = 0, 0, true
	g.meta["tokenizer.chat_template"] = "{{ eos_token }}{{ messages[0].content }}"
}

func TestGGUFText(t *testing.T) {
	g := tinyGGUF(t, tinyModel(t))
	addTokenizer(&g, 61)
	m, err := openGGUFBytes(t, g.bytes())
	require.NoError(t, err)
	ids := m.Tokenizer.Encode("AB<|end|>", true)
	require.Equal(t, []int32{'A' - 32, 'B' - 32, 0}, ids)
	require.Equal(t, []int32{0, 'A' - 32, 'B' - 32, 0}, m.Tokenizer.WithSpecials(ids), "add_bos_token")
	require.Equal(t, []int32{0}, m.StopIDs)
	text, err := m.Template.Render([]Message{{Role: "user", Content: "x"}}, nil, false)
	require.NoError(t, err)
	require.Equal(t, "<|end|>x", text)

	info, err := Inspect(writeTemp(t, g.bytes()))
	require.NoError(t, err)
	require.NoError(t, info.Problem)
	require.Equal(t, 61, info.VocabSize)
	require.True(t, info.Template)
	require.False(t, info.Tools)
	require.Equal(t, m.Config.NumParams(), info.Params)
	require.Equal(t, map[string]int64{"F32": info.Params}, info.ByType)
	require.Equal(t, 4*info.Params, info.Bytes)
}

func writeTemp(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

// A file cut anywhere is refused, never misread, and never allocates much.
func TestTruncatedGGUFIsRefused(t *testing.T) {
	g := tinyGGUF(t, tinyModel(t))
	addTokenizer(&g, 61)
	whole := g.bytes()
	for n := 0; n < len(whole); n += 1 + n/50 {
		_, err := ReadGGUF(bytes.NewReader(whole[:n]), int64(n))
		require.ErrorIs(t, err, ErrFormat, "%d bytes", n)
	}
	_, err := openGGUFBytes(t, whole[:len(whole)-32])
	require.ErrorContains(t, err, "truncated")
}

func FuzzGGUF(f *testing.F) {
	m := tinyModel(f)
	g := tinyGGUF(f, m)
	addTokenizer(&g, 61)
	f.Add(g.bytes()[:4096])
	for _, name := range []string{"phi3", "qwen3moe"} {
		data, err := os.ReadFile(filepath.Join("testdata/gguf", name+".gguf"))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add(ggufFile{tensors: []ggufTensor{{"w", 2, []int{1, 32}, make([]byte, 18)}}}.bytes())
	f.Add(ggufFile{meta: map[string]any{"a": []int32{1, 2}, "general.alignment": 64}}.bytes())
	f.Add([]byte("GGUF\x03\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := ReadGGUF(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for _, x := range g.Tensors() {
			if q, ok := ggufTypes[x.DType]; ok && x.Len() <= len(data)*q.elems {
				_ = g.ReadF32(x.Name, x.Shape, make([]float32, x.Len()))
			}
		}
		if c, err := ggufConfig(g); err == nil && c.NumHiddenLayers < 1000 {
			if s, err := g.stored(c, closers{}); err == nil {
				_, _ = s.digest(nil)
				_, _ = s.load()
			}
		}
		_, _, _ = ggufText(g)
	})
}
