package disk

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWriteAt: more parts than the kernel takes at once, empty ones among them.
func TestWriteAt(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	want := []byte("head")
	_, err = f.Write(want)
	require.NoError(t, err)
	var parts [][]byte
	for i := range 3000 {
		parts = append(parts, bytes.Repeat([]byte{byte(i)}, i%7))
		want = append(want, parts[i]...)
	}
	require.NoError(t, WriteAt(f, parts, 4))
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, WriteAt(f, nil, 4))
	require.NoError(t, f.Close())
	require.Error(t, WriteAt(f, parts, 4))
}
