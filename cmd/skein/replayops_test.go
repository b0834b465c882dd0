package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay/backup"
	"github.com/skein-rl/skein/replay/load"
	"github.com/skein-rl/skein/replay/transfer"
)

// TestReplayOperations on a run: what is moved out comes back equal, backups
// become run folders, and what is deleted is gone.
func TestReplayOperations(t *testing.T) {
	dir := tinyRun(t)
	tmp := t.TempDir()
	replay := func(v any, args ...string) {
		t.Helper()
		lastJSON(t, output(t, time.Minute, append(append([]string{"replay"}, args...), "--json")...), v)
	}
	var counts struct{ Logs, Bytes int }
	for _, format := range []string{"jsonl", "parquet"} {
		replay(&counts, "export", "--dir", dir, "--to", filepath.Join(tmp, format), "--format", format)
		require.Positive(t, counts.Logs)
	}
	logs := counts.Logs

	// The first half, then the rest by the token of the last line.
	var lines []followLine
	follow := func(n int, more ...string) {
		t.Helper()
		out := output(t, time.Minute, append([]string{"replay", "follow", "--dir", dir, "-n", jsonText(n)}, more...)...)
		s := bufio.NewScanner(strings.NewReader(out))
		for s.Scan() {
			var l followLine
			require.NoError(t, json.Unmarshal(s.Bytes(), &l))
			lines = append(lines, l)
		}
	}
	follow(logs / 2)
	follow(logs-logs/2, "--from", lines[len(lines)-1].Token)
	seen := map[string]bool{}
	for _, l := range lines {
		require.False(t, seen[l.ID])
		seen[l.ID] = true
	}
	require.Len(t, seen, logs)

	target := filepath.Join(tmp, "backups")
	var m backup.Manifest
	replay(&m, "backup", "--dir", dir, "--to", target, "--name", "one")
	require.Equal(t, logs, m.NewLogs)
	restored := filepath.Join(tmp, "restored")
	run := lines[0].Run
	replay(&counts, "restore", "--from", target, "--to", restored, "--as-run", run)
	require.Equal(t, logs, counts.Logs)
	var ok struct{ OK bool }
	replay(&ok, "verify", "--dir", restored)
	require.True(t, ok.OK)
	replay(&ok, "backups", "--from", target, "--check", "one")
	require.True(t, ok.OK)

	// Out of the restored one, and into it again from the export.
	var change struct{ Found, Deleted, Redacted int }
	replay(&change, "redact", "--dir", restored, "--id", lines[1].ID, "--of-author", "*", "--reason", "asked")
	require.Equal(t, 1, change.Redacted)
	replay(&change, "delete", "--dir", restored, "--id", lines[0].ID, "--reason", "asked", "--compact")
	require.Equal(t, 1, change.Deleted)
	replay(&m, "backup", "--dir", restored, "--to", target, "--name", "two")
	require.Equal(t, 1, m.NewLogs, "the twin alone is new")
	var pruned backup.PruneReport
	replay(&pruned, "prune", "--from", target, "--name", "one")
	require.Equal(t, []string{"one"}, pruned.Backups)
	b, err := skein(t, time.Minute, "replay", "import", "--from", filepath.Join(tmp, "parquet"), "--dir", restored, "--json").Output()
	require.Error(t, err, "what was deleted and redacted here does not come back")
	var rep transfer.ImportReport
	lastJSON(t, string(b), &rep)
	require.Equal(t, logs-2, rep.Duplicates)
	require.Equal(t, 2, rep.Rejected)

	// A table that collects, priorities in bulk, and dropping it.
	set := filepath.Join(tmp, "t.yaml")
	require.NoError(t, os.WriteFile(set, []byte("collect: finished\nsampler: {kind: prioritized, exponent: 1}\n"), 0o600))
	replay(&struct{}{}, "set", "offline", "--file", set, "--dir", dir)
	prios := filepath.Join(tmp, "p")
	require.NoError(t, os.WriteFile(prios, []byte("none 3\n{\"group\": \"gone\", \"priority\": 0.5}\n\n"), 0o600))
	var p struct{ Set, Gone int }
	replay(&p, "priorities", "offline", "--file", prios, "--dir", dir)
	require.Equal(t, 2, p.Gone)
	replay(&struct{}{}, "drop", "offline", "--dir", dir)

	var bench load.Report
	replay(&bench, "bench", "--local", filepath.Join(tmp, "bench"), "--for", "300ms", "--producers", "2")
	require.Positive(t, bench.Append.Logs)
	require.Positive(t, bench.Sample.Logs)
	require.NoDirExists(t, filepath.Join(tmp, "bench"))

	for want, args := range map[string][]string{
		"say which logs":       {"delete", "--dir", dir, "--reason", "x"},
		"--reason":             nil,
		"no run is of this":    {"delete", "--dir", dir, "--all", "--reason", "x", "--tenant", "none"},
		"say what: --match":    {"redact", "--dir", dir, "--all", "--reason", "x"},
		"error parsing regexp": {"redact", "--dir", dir, "--all", "--reason", "x", "--match", "("},
		"holds no backup":      {"restore", "--from", target, "--name", "none", "--to", filepath.Join(tmp, "z")},
		"is not empty":         {"restore", "--from", target, "--to", restored},
		"is no directory":      {"repair", "--node-dir", tmp},
		"belongs to the run":   {"drop", "train", "--dir", dir},
		"it is none":           {"follow", "--dir", dir, "--from", "x"},
		"is no export":         {"import", "--from", tmp, "--dir", dir},
		"--file " + set:        {"priorities", "offline", "--dir", dir, "--file", set},
		"want 1 to 4096":       {"bench", "--local", filepath.Join(tmp, "y"), "--producers", "0"},
	} {
		if args == nil {
			args = []string{"delete", "--dir", dir, "--all"}
		}
		out, err := skein(t, time.Minute, append([]string{"replay"}, args...)...).CombinedOutput()
		require.Error(t, err, args)
		if want != "--reason" {
			require.Contains(t, string(out), want)
		} else {
			require.Contains(t, string(out), "reason")
		}
	}
}

func jsonText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
