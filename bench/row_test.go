package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddAppends(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	for range 2 { // a second run appends
		l, err := Open(dir, "x")
		require.NoError(t, err)
		require.NoError(t, l.Add(Row{Bench: "decode", Size: "b=1", Ours: 30.00049, Theirs: 20, Unit: "tokens/s", Peer: "p", Runs: 3}, Higher))
		require.NoError(t, l.Add(Row{Bench: "rss", Ours: 30, Theirs: 20, Unit: "MB", Peer: "p"}, Lower))
		require.ErrorContains(t, l.Add(Row{Bench: "decode", Ours: 3, Peer: "p"}, Higher), "must be above 0")
		require.Error(t, l.Add(Row{Bench: "decode", Ours: math.NaN(), Theirs: 1, Peer: "p"}, Lower))
	}
	text, err := os.ReadFile(filepath.Join(dir, "x.jsonl"))
	require.NoError(t, err)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	require.Len(t, lines, 4)
	var row map[string]any
	require.NoError(t, json.Unmarshal(lines[0], &row))
	require.Equal(t, 1.5, row["ratio"])
	require.Equal(t, 30.0, row["ours"])
	for _, key := range []string{"bench", "size", "ours", "peer", "peer_version", "theirs", "unit", "ratio", "commit", "machine", "when"} {
		require.Contains(t, row, key)
	}
	require.NoError(t, json.Unmarshal(lines[1], &row))
	require.Equal(t, 0.6667, row["ratio"])
}

func TestRound(t *testing.T) {
	for x, want := range map[float64]float64{123456: 123500, 0.00123456: 0.001235, -12.3456: -12.35, 7: 7, 0: 0} {
		require.Equal(t, want, round(x))
	}
}
