package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay/table"
)

// TestReplayCommands on a run: what is listed, and what is refused.
func TestReplayCommands(t *testing.T) {
	dir := tinyRun(t)
	var tables struct{ Tables []tableView }
	lastJSON(t, output(t, time.Minute, "replay", "tables", "--dir", dir, "--json"), &tables)
	require.Equal(t, "train", tables.Tables[0].Table)
	require.Positive(t, tables.Tables[0].Consumed)
	var stat struct{ Runs []struct{ Logs int } }
	lastJSON(t, output(t, time.Minute, "replay", "stat", "--dir", dir, "--json"), &stat)
	require.Positive(t, stat.Runs[0].Logs)
	var found struct{ Logs []logView }
	lastJSON(t, output(t, time.Minute, "replay", "query", "--dir", dir, "--max-version", "0", "-n", "3", "--json"), &found)
	require.Len(t, found.Logs, 3)
	for _, l := range found.Logs {
		require.Zero(t, l.MaxVersion)
	}
	require.Contains(t, output(t, time.Minute, "replay", "show", "train", "--dir", dir), "max_times_sampled: 1")

	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("samplr: {kind: fifo}\n"), 0o600))
	for want, args := range map[string][]string{
		"has none of this name":      {"replay", "show", "x", "--dir", dir},
		"table \"x\"":                {"replay", "ls", "x", "--dir", dir},
		"unknown field":              {"replay", "set", "x", "--file", bad, "--dir", dir},
		"min-reward 2 above":         {"replay", "query", "--dir", dir, "--min-reward", "2", "--max-reward", "1"},
		"want ok, truncated, failed": {"replay", "query", "--dir", dir, "--status", "great"},
	} {
		out, err := skein(t, time.Minute, args...).CombinedOutput()
		require.Error(t, err, args)
		require.Contains(t, string(out), want)
	}
}

// TestTableFiles: what show prints, set reads.
func TestTableFiles(t *testing.T) {
	cfg := table.Default()
	cfg.Sampler = table.Selector{Kind: table.Prioritized, Exponent: 0.6, Stratify: table.ByTask}
	cfg.TTL = table.Duration(90 * time.Second)
	file := filepath.Join(t.TempDir(), "t.yaml")
	require.NoError(t, os.WriteFile(file, []byte(asYAML(cfg)), 0o600))
	b, err := readTableFile(file)
	require.NoError(t, err)
	back, err := table.Decode(b, table.Config{})
	require.NoError(t, err)
	require.Equal(t, cfg, back)
	_, err = readTableFile("none.yaml")
	require.ErrorContains(t, err, "--file")
}
