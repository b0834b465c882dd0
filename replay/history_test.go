package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// record names a version whose histories this build writes, for instance
// -record=v2: recorded ones are never rewritten.
var record = flag.String("record", "", "write testdata/history/NAME from the scripts, once per release")

// Recorded histories: for each version that wrote one, testdata/history/VERSION
// holds per story
//
//	STORY.cmds  { length uvarint | encoded command }
//	STORY.snap  the snapshot after half of them
//	digests     "STORY sha256-of-the-last-state" per line
//
// Whatever an older build wrote must decode and lead to the very same state.

// TestHistories folds every recorded history, whole and from its snapshot.
func TestHistories(t *testing.T) {
	if *record != "" {
		writeHistories(t, filepath.Join("testdata/history", *record))
	}
	files, err := filepath.Glob("testdata/history/*/digests")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		lines, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, line := range strings.Split(strings.TrimSpace(string(lines)), "\n") {
			story, want, ok := strings.Cut(line, " ")
			require.True(t, ok, line)
			t.Run(filepath.Base(filepath.Dir(file))+"/"+story, func(t *testing.T) {
				base := filepath.Join(filepath.Dir(file), story)
				cmds := readCommands(t, base+".cmds")
				whole := NewMemKV()
				foldAll(t, whole, cmds)
				require.Equal(t, want, digestOf(t, whole))

				snap, err := os.ReadFile(base + ".snap")
				require.NoError(t, err)
				rest := NewMemKV()
				applied, err := readSnapshot(bytes.NewReader(snap), func(k, v []byte) error { return rest.Set(k, v) })
				require.NoError(t, err)
				foldAll(t, rest, cmds[applied:])
				require.Equal(t, want, digestOf(t, rest))
			})
		}
	}
}

func foldAll(t *testing.T, kv KV, cmds [][]byte) {
	for _, b := range cmds {
		c, err := DecodeCommand(b)
		require.NoError(t, err)
		_, err = Apply(kv, c)
		require.NoError(t, err)
	}
}

func digestOf(t *testing.T, kv Reader) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(dump(t, kv), "\n"))))
}

func readCommands(t *testing.T, file string) (out [][]byte) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		require.Positive(t, k)
		out, b = append(out, b[k:k+int(n)]), b[k+int(n):]
	}
	return out
}

// writeHistories records what the scripts do today.
func writeHistories(t *testing.T, dir string) {
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist, "a recorded history is never rewritten")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	scripts, err := filepath.Glob("testdata/fold/*.txt")
	require.NoError(t, err)
	var digests strings.Builder
	for _, file := range scripts {
		in, err := os.ReadFile(file)
		require.NoError(t, err)
		s := newScript()
		old := false
		for _, line := range strings.Split(string(in), "\n") {
			switch {
			case line == "----":
				old = true
			case line == "":
				old = false
			case !old && !strings.HasPrefix(line, "#"):
				s.run(line)
			}
		}
		base := filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".txt"))
		var cmds []byte
		half := NewMemKV()
		foldAll(t, half, s.log[:len(s.log)/2])
		for _, b := range s.log {
			cmds = append(binary.AppendUvarint(cmds, uint64(len(b))), b...)
		}
		var snap bytes.Buffer
		require.NoError(t, writeSnapshot(&snap, half, uint64(len(s.log)/2)))
		require.NoError(t, os.WriteFile(base+".cmds", cmds, 0o644))
		require.NoError(t, os.WriteFile(base+".snap", snap.Bytes(), 0o644))
		fmt.Fprintf(&digests, "%s %s\n", filepath.Base(base), digestOf(t, s.kv))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "digests"), []byte(digests.String()), 0o644))
}
