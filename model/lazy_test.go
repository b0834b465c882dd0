package model

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// everyFile are models of both formats, of every family.
func everyFile(t *testing.T) []string {
	files, err := filepath.Glob("testdata/gguf/*.gguf")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return append(files, familyDirs(t)...)
}

// openAny opens weights of either format.
func openAny(t *testing.T, path string) *Model {
	t.Helper()
	open := Open
	if filepath.Ext(path) != ".gguf" {
		open = OpenWeights
	}
	m, err := open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// Weights in files and the same in memory: one digest, the same numbers by layer,
// by row and flat, whatever the buffer held before.
func TestWeightsInFiles(t *testing.T) {
	for _, path := range everyFile(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, all := openAny(t, path), openAny(t, path)
			require.NoError(t, all.Weights.Load())
			require.NoError(t, all.Weights.Load(), "loading again does nothing")
			require.Equal(t, weightsDigest(all.Config, all.Weights), m.Digest)
			require.Nil(t, m.Weights.Embed)
			require.Equal(t, all.Weights.Norm, m.Weights.Norm)
			var buf LayerWeights
			for _, i := range append([]int{m.Config.NumHiddenLayers - 1}, 0, m.Config.NumHiddenLayers-1) {
				l, err := m.Weights.Layer(i, &buf)
				require.NoError(t, err)
				require.Equal(t, all.Weights.Layers[i].Tensors(all.Config, i), l.Tensors(m.Config, i))
				want, err := all.Weights.Layer(i, &buf)
				require.NoError(t, err)
				require.Same(t, &all.Weights.Layers[i], want)
			}
			for _, rows := range [][2]int{{0, m.Config.VocabSize}, {3, 11}, {7, 7}} {
				for _, read := range []func(*Weights, int, int, []float32) ([]float32, error){(*Weights).EmbedRows, (*Weights).HeadRows} {
					want, err := read(all.Weights, rows[0], rows[1], nil)
					require.NoError(t, err)
					got, err := read(m.Weights, rows[0], rows[1], make([]float32, 5))
					require.NoError(t, err)
					require.Equal(t, append([]float32{}, want...), append([]float32{}, got...))
				}
			}
			want, err := all.Weights.Flatten(all.Config)
			require.NoError(t, err)
			got, err := m.Weights.Flatten(m.Config)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestClosedWeights(t *testing.T) {
	m, err := OpenWeights(tinyDir)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close(), "twice is fine")
	_, err = m.Weights.Layer(0, new(LayerWeights))
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = m.Weights.EmbedRows(0, 1, nil)
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = m.Weights.Flatten(m.Config)
	require.ErrorIs(t, err, fs.ErrClosed)
	require.ErrorIs(t, m.Weights.Load(), fs.ErrClosed)
	_, err = m.Merge(&Adapter{})
	require.Error(t, err)

	all := tinyModel(t)
	require.NoError(t, all.Close())
	_, err = all.Weights.HeadRows(0, 1, nil)
	require.NoError(t, err, "what is in memory stays")
	_, err = all.Weights.HeadRows(60, 62, nil)
	require.ErrorContains(t, err, `tensor "lm_head.weight" has 1464 elements, row 61 ends at 1488`)
	require.NoError(t, (&Model{}).Close())
}

// A file that is replaced while a model is open changes nothing; one cut short is
// an error.
func TestWeightsFileChanges(t *testing.T) {
	m := tinyModel(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	_, err := m.SaveGGUF(path, "F32", nil)
	require.NoError(t, err)
	open, err := Open(path)
	require.NoError(t, err)
	defer open.Close()
	_, err = m.SaveGGUF(path, "Q8_0", nil)
	require.NoError(t, err)
	got, err := open.Weights.Flatten(open.Config)
	require.NoError(t, err)
	want, err := m.Weights.Flatten(m.Config)
	require.NoError(t, err)
	require.Equal(t, want, got)

	cut, err := Open(path)
	require.NoError(t, err)
	defer cut.Close()
	require.NoError(t, os.Truncate(path, 4096))
	require.ErrorContains(t, cut.Weights.Load(), `read tensor "`)
	_, err = cut.Weights.EmbedRows(0, m.Config.VocabSize, nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
