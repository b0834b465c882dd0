package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMkdirAll(t *testing.T) {
	base := t.TempDir()
	deep := filepath.Join(base, "a", "b", "c")
	require.NoError(t, MkdirAll(deep, 0o700))
	require.DirExists(t, deep)
	require.NoError(t, MkdirAll(deep, 0o700), "it is there")
	file := filepath.Join(base, "f")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Error(t, MkdirAll(file, 0o700))
	require.Error(t, MkdirAll(filepath.Join(file, "x"), 0o700))
	require.Error(t, SyncDir(filepath.Join(base, "none")))
	t.Chdir(base)
	require.NoError(t, MkdirAll("x/y", 0o700))
	require.DirExists(t, filepath.Join(base, "x", "y"))
}
