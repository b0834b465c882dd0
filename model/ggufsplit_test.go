package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeSplit writes the tiny model's tensors over n files, as llama.cpp's
// gguf-split does: metadata in the first, split.* in each.
func writeSplit(t testing.TB, dir string, n int, change func(i int, meta map[string]any)) (first string) {
	t.Helper()
	m := tinyModel(t)
	meta, _, err := ggufMeta(m.Config, "tiny")
	require.NoError(t, err)
	tensors := ggufTensors(m.Config, m.Weights, "F32")
	per := (len(tensors) + n - 1) / n
	for i := range n {
		own := map[string]any{}
		if i == 0 {
			own = maps.Clone(meta)
		}
		own["split.no"], own["split.count"], own["split.tensors.count"] = uint32(i), uint32(n), int32(len(tensors))
		if change != nil {
			change(i, own)
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("tiny-%05d-of-%05d.gguf", i+1, n)))
		require.NoError(t, err)
		require.NoError(t, WriteGGUF(f, own, tensors[i*per:min((i+1)*per, len(tensors))], nil))
		require.NoError(t, f.Close())
		if i == 0 {
			first = f.Name()
		}
	}
	return first
}

func TestSplitGGUF(t *testing.T) {
	first := writeSplit(t, t.TempDir(), 3, nil)
	var done, total int64
	m, err := Open(first, WithProgress(func(d, of int64) { done, total = d, of }))
	require.NoError(t, err)
	require.Equal(t, tinyModel(t).Weights, loaded(t, m).Weights)
	require.Equal(t, 4*m.Config.NumParams(), total, "all parts are counted")
	require.Equal(t, total, done)
	info, err := Inspect(first)
	require.NoError(t, err)
	require.NoError(t, info.Problem)
	require.Equal(t, m.Config.NumParams(), info.Params)
}

func TestSplitGGUFRefusals(t *testing.T) {
	rename := func(t *testing.T, dir, from, to string) {
		require.NoError(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
	}
	for name, tc := range map[string]struct {
		change func(i int, meta map[string]any)
		then   func(t *testing.T, dir string)
		open   string
		want   string
	}{
		"second part": {open: "tiny-00002-of-00003.gguf", want: "part 00002 of 3 of a split model: open the first, tiny-00001-of-00003.gguf"},
		"part missing": {then: func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "tiny-00003-of-00003.gguf")))
		}, want: "part 3 of 3 of the split model"},
		"renamed":       {then: func(t *testing.T, dir string) { rename(t, dir, "tiny-00001-of-00003.gguf", "m.gguf") }, open: "m.gguf", want: "give the files back their names"},
		"parts swapped": {then: func(t *testing.T, dir string) { rename(t, dir, "tiny-00003-of-00003.gguf", "tiny-00002-of-00003.gguf") }, want: "says it is part 3 of the split model (split.no from 0), its name part 2"},
		"other count":   {change: func(i int, meta map[string]any) { meta["split.count"] = uint32(4) }, want: "split.count is 4, the file's name says 3"},
		"huge count":    {change: func(i int, meta map[string]any) { meta["split.count"] = uint64(1 << 40) }, want: "split.count is 1099511627776"},
		"lost tensors":  {change: func(i int, meta map[string]any) { meta["split.tensors.count"] = int32(99) }, want: "split.tensors.count is 99"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := writeSplit(t, dir, 3, tc.change)
			if tc.then != nil {
				tc.then(t, dir)
			}
			if tc.open != "" {
				path = filepath.Join(dir, tc.open)
			}
			_, err := Open(path)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// The same bytes give the same metadata, whatever the kind of value.
func TestGGUFValuesRoundTrip(t *testing.T) {
	meta := map[string]any{
		"u": uint32(7), "i": int32(-3), "l": uint64(1 << 40), "f": float32(0.1), "b": true, "s": "é\x00x",
		"as": []string{"", "a"}, "ai": []int32{-1, 2}, "af": []float32{0.5}, "ab": []bool{true, false}, ggufArchKey: "x",
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, WriteGGUF(f, meta, nil, nil))
	require.NoError(t, f.Close())
	g, files, err := openGGUFHeader(path)
	require.NoError(t, err)
	defer files.Close()
	require.Equal(t, map[string]any{
		"u": uint64(7), "i": int64(-3), "l": uint64(1 << 40), "f": 0.1, "b": true, "s": "é\x00x",
		"as": []string{"", "a"}, "ai": []int64{-1, 2}, "af": []float64{0.5}, "ab": []bool{true, false}, ggufArchKey: "x",
	}, g.Meta)
	require.ErrorContains(t, WriteGGUF(nil, map[string]any{"k": 1.5}, nil, nil), `key "k": values of type float64`)
	for want, tensor := range map[string]GGUFTensor{
		`type "Q6_K" is not written`:           {Name: "w", Shape: []int{1, 256}, Type: "Q6_K", Data: [][]float32{make([]float32, 256)}},
		"rows of 33 elements are no multiple":  {Name: "w", Shape: []int{32, 33}, Type: "Q8_0", Data: [][]float32{make([]float32, 32*33)}},
		"shape [2 2] for 3 elements":           {Name: "w", Shape: []int{2, 2}, Type: "F32", Data: [][]float32{{1, 2, 3}}},
		"a part of 16 elements is no multiple": {Name: "w", Shape: []int{1, 32}, Type: "Q8_0", Data: [][]float32{make([]float32, 16), make([]float32, 16)}},
	} {
		require.ErrorContains(t, WriteGGUF(nil, nil, []GGUFTensor{tensor}, nil), want)
	}
}

// A file that becomes shorter while it is read is an error, not a crash, mapped
// or not, and reading in pieces gives what reading whole gives.
func TestReadBlocksFromFilesAndReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	want := make([]float32, 3<<20) // several chunks, and windows of a reader
	for i := range want {
		want[i] = float32(i)
	}
	lead := []byte("seven..")
	require.NoError(t, os.WriteFile(path, encodeF32(slices.Clone(lead), want), 0o644))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for name, r := range map[string]readerAtOnly{"mapped": {f, true}, "read": {f, false}} {
		t.Run(name, func(t *testing.T) {
			got := make([]float32, len(want))
			var done int64
			require.NoError(t, r.readBlocks(int64(len(lead)), plainTypes[F32], got, func(n int64) { done += n }))
			require.Equal(t, want, got)
			require.EqualValues(t, 4*len(want), done)
		})
	}
	require.NoError(t, os.Truncate(path, 1<<20))
	for _, r := range []readerAtOnly{{f, true}, {f, false}} {
		err := r.readBlocks(int64(len(lead)), plainTypes[F32], make([]float32, len(want)), nil)
		require.Error(t, err)
	}
}

// readerAtOnly hides that a reader is a file, unless mapped.
type readerAtOnly struct {
	f      *os.File
	mapped bool
}

func (r readerAtOnly) ReadAt(b []byte, at int64) (int, error) { return r.f.ReadAt(b, at) }

func (r readerAtOnly) readBlocks(at int64, t blockType, dst []float32, done func(int64)) error {
	if r.mapped {
		return readBlocks(r.f, at, t, dst, done)
	}
	return readBlocks(r, at, t, dst, done)
}

// The size of a tensor of a type that is not read is nothing that the file's own
// size bounds: it must be refused before memory is taken for it.
func TestHugeTensorsOfUnknownTypesAreRefused(t *testing.T) {
	g := tinyGGUF(t, tinyModel(t))
	g.meta["llama.embedding_length"] = 1 << 20
	for i := range g.tensors {
		x := &g.tensors[i]
		for j, d := range x.shape {
			if d == 24 {
				x.shape[j] = 1 << 20
			}
		}
		x.typ = 16
	}
	_, err := openGGUFBytes(t, g.bytes())
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, `tensor "token_embd.weight": type IQ2_XXS is not implemented`)

	dir := t.TempDir()
	conf, err := os.ReadFile(filepath.Join(tinyDir, "config.json"))
	require.NoError(t, err)
	var c map[string]any
	require.NoError(t, json.Unmarshal(conf, &c))
	c["vocab_size"], c["hidden_size"] = 1<<16, 1<<20
	conf, err = json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), conf, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"),
		stFile(`{"model.embed_tokens.weight":{"dtype":"F8_E4M3","shape":[65536,1048576],"data_offsets":[0,4]}}`, 4), 0o644))
	_, err = OpenWeights(dir)
	require.ErrorContains(t, err, `tensor "model.embed_tokens.weight": dtype F8_E4M3`)
}
