package embed

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type golden struct {
	Text   string
	IDs    []int32
	Vector []float64
}

func readGolden(t *testing.T, name string) (out []golden) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &out))
	require.NotEmpty(t, out)
	return out
}

// check compares ids exactly and vectors of length 1 within 2e-6: transformers
// computed them in float32 too.
func check(t *testing.T, e *Encoder, cases []golden) {
	t.Helper()
	var seqs [][]int32
	for _, g := range cases {
		ids, err := e.Tokenize(g.Text, false)
		require.NoError(t, err)
		require.Equal(t, g.IDs, ids, g.Text)
		seqs = append(seqs, ids)
	}
	got, err := e.Encode(context.Background(), seqs)
	require.NoError(t, err)
	for i, g := range cases {
		require.Len(t, got[i], e.Dim())
		for j, want := range g.Vector {
			require.InDelta(t, want, got[i][j], 2e-6, "%q [%d]", g.Text, j)
		}
		alone, err := e.Encode(context.Background(), seqs[i:i+1])
		require.NoError(t, err)
		require.Equal(t, alone[0], got[i], "company changes %q", g.Text)
	}
}

func TestTinyAgainstTransformers(t *testing.T) {
	for _, threads := range []int{1, 3} {
		e, err := Open("testdata/tiny", threads)
		require.NoError(t, err)
		check(t, e, readGolden(t, "tiny/golden.json"))
	}
}

// SKEIN_MINILM is the folder of the real model (make slow fetches it by pip).
func TestMiniLMAgainstTransformers(t *testing.T) {
	dir := os.Getenv("SKEIN_MINILM")
	if dir == "" {
		t.Skip("SKEIN_MINILM is not set")
	}
	e, err := Open(dir, 2)
	require.NoError(t, err)
	check(t, e, readGolden(t, "minilm.json"))
}

func TestLengthLimit(t *testing.T) {
	e, err := Open("testdata/tiny", 1)
	require.NoError(t, err)
	long := strings.Repeat("fox ", 300)
	_, err = e.Tokenize(long, false)
	require.ErrorIs(t, err, ErrTooLong)
	require.ErrorContains(t, err, "302 tokens")
	ids, err := e.Tokenize(long, true)
	require.NoError(t, err)
	require.Len(t, ids, e.MaxTokens())
	require.Equal(t, ids[0], e.tok.WithSpecials(nil)[0])
	require.Equal(t, ids[len(ids)-1], e.tok.WithSpecials(nil)[1])
	v, err := e.Encode(context.Background(), [][]int32{ids})
	require.NoError(t, err)
	var square float64
	for _, x := range v[0] {
		square += float64(x) * float64(x)
	}
	require.InDelta(t, 1, math.Sqrt(square), 1e-6)
	_, err = e.Encode(context.Background(), [][]int32{make([]int32, e.MaxTokens()+1)})
	require.ErrorIs(t, err, ErrTooLong)
	_, err = e.Encode(context.Background(), [][]int32{{int32(e.c.Vocab)}})
	require.ErrorContains(t, err, "vocabulary")
}

func TestRefusals(t *testing.T) {
	edit := func(t *testing.T, file string, change func(map[string]any)) string {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/tiny")))
		path := filepath.Join(dir, file)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var m map[string]any
		require.NoError(t, json.Unmarshal(data, &m))
		change(m)
		data, err = json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o644))
		return dir
	}
	for want, dir := range map[string]string{
		`model_type "roberta"`:             edit(t, "config.json", func(m map[string]any) { m["model_type"] = "roberta" }),
		`hidden_act "relu"`:                edit(t, "config.json", func(m map[string]any) { m["hidden_act"] = "relu" }),
		"hidden_size is 1073741824":        edit(t, "config.json", func(m map[string]any) { m["hidden_size"] = 1 << 30 }),
		"tensor \"encoder.layer.2":         edit(t, "config.json", func(m map[string]any) { m["num_hidden_layers"] = 3 }),
		"config.json wants [90 64]":        edit(t, "config.json", func(m map[string]any) { m["hidden_size"] = 64 }),
		"pooling_mode_max_tokens":          edit(t, "1_Pooling/config.json", func(m map[string]any) { m["pooling_mode_max_tokens"] = true }),
		"exactly one of pooling_mode_mean": edit(t, "1_Pooling/config.json", func(m map[string]any) { m["pooling_mode_mean_tokens"] = false }),
	} {
		_, err := Open(dir, 1)
		require.ErrorContains(t, err, want)
	}
}
