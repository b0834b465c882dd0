package eventlog

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "record logs that testdata/v1 does not have yet")

// recorded are the logs of testdata/v1. A file once recorded is never written
// again: it is what some disk holds.
func recorded(t *testing.T) map[string]*Log {
	return map[string]*Log{
		"tool":    toolLog(t),
		"fork":    forkLog(t),
		"wrapper": wrapperLog(t),
		"light":   must(ImportMessages([]byte(chat)))[0],
		"expert":  must(FromTrajectory(testTrajectory())),
		"failed": {ID: "failed-1", Meta: Meta{
			Run: "r", Group: "g", GroupSize: 2, Status: Failed, Cause: "tool: connection refused", Created: t0,
		}},
		"stream": func() *Log {
			b := NewBuilder(testMeta())
			e := NewText("Hel")
			e.Partial, e.Start, e.End = true, t0, t0
			must(b.Append(e))
			must(b.Append(NewMemoryOp("UPDATE", "m", "semantic")))
			return must(b.Finish(TimedOut, "rollout: deadline 30s"))
		}(),
	}
}

// TestRecorded reads logs recorded by earlier builds: each must decode, with
// the digest noted then, to the log its maker builds today.
func TestRecorded(t *testing.T) {
	dir := filepath.Join("testdata", "v1")
	index := filepath.Join(dir, "digests.txt")
	known := map[string]string{}
	if text, err := os.ReadFile(index); err == nil {
		for line := range strings.Lines(string(text)) {
			name, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
			known[name] = digest
		}
	}
	logs := recorded(t)
	if *update {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for name, l := range logs {
			if known[name] == "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name+".log"), must(Encode(l)), 0o644))
				known[name] = l.Digest()
			}
		}
		var out strings.Builder
		for _, name := range slices.Sorted(maps.Keys(known)) {
			out.WriteString(name + " " + known[name] + "\n")
		}
		require.NoError(t, os.WriteFile(index, []byte(out.String()), 0o644))
	}
	require.NotEmpty(t, known)
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Len(t, files, len(known), "a recorded log and its digest go together")
	for name, digest := range known {
		data, err := os.ReadFile(filepath.Join(dir, name+".log"))
		require.NoError(t, err)
		l, err := Decode(data)
		require.NoError(t, err, name)
		require.Equal(t, digest, l.Digest(), name)
		if want := logs[name]; want != nil {
			require.Empty(t, cmp.Diff(want, l, equalLogs), name)
		}
		// Written anew, it is the same log.
		require.Equal(t, digest, again(t, l).Digest(), name)
	}
}
