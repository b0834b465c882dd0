package blob

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, opts)
	require.NoError(t, err)
	return s
}

func put(t *testing.T, s *Store, data string) string {
	t.Helper()
	d, err := s.Put([]byte(data))
	require.NoError(t, err)
	return d
}

func file(s *Store, digest string) string {
	name := strings.TrimPrefix(digest, Prefix)
	return filepath.Join(s.dir, name[:2], name)
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	// The digest of nothing, from the BLAKE3 test vectors.
	require.Equal(t, "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262", put(t, s, ""))
	d := put(t, s, "adapter")
	require.Equal(t, d, put(t, s, "adapter"))
	for range 2 { // reopened too
		got, err := s.Get(d)
		require.NoError(t, err)
		require.Equal(t, "adapter", string(got))
		require.True(t, s.Has(d))
		s = open(t, dir, Options{})
	}
	require.NoError(t, s.Delete(d))
	require.NoError(t, s.Delete(d))
	require.False(t, s.Has(d))
	_, err := s.Get(d)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, d)
}

// TestRefusesAnythingButADigest: no name leads out of the directory.
func TestRefusesAnythingButADigest(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	good := Digest(nil)
	for _, bad := range []string{"", "blake3:", "blake3:../../etc/passwd", good[7:], "sha256:" + good[7:], strings.ToUpper(good),
		Prefix + strings.ToUpper(good[7:]), good + "00", good[:len(good)-1]} {
		_, err := s.Get(bad)
		require.ErrorIs(t, err, ErrBadDigest, bad)
		require.ErrorIs(t, s.Delete(bad), ErrBadDigest)
		require.False(t, s.Has(bad))
	}
}

// TestDamageIsNoBlob (P6): a flipped bit or a short file is an error, the blob
// then counts as missing and can be put again.
func TestDamageIsNoBlob(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { b[3] ^= 1; return b },
		func(b []byte) []byte { return b[:4] },
		func([]byte) []byte { return nil },
	} {
		d := put(t, s, "checkpoint")
		b, err := os.ReadFile(file(s, d))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file(s, d), damage(b), 0o600))
		_, err = s.Get(d)
		require.ErrorIs(t, err, ErrCorrupt)
		_, err = s.Get(d)
		require.ErrorIs(t, err, ErrNotFound)
		require.Equal(t, d, put(t, s, "checkpoint"))
		got, err := s.Get(d)
		require.NoError(t, err)
		require.Equal(t, "checkpoint", string(got))
		// Putting over damage repairs it too.
		require.NoError(t, os.WriteFile(file(s, d), []byte("x"), 0o600))
		put(t, s, "checkpoint")
		_, err = s.Get(d)
		require.NoError(t, err)
	}
}

func TestInterruptedPutLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	require.NoError(t, os.WriteFile(filepath.Join(s.tmp(), "put-123"), []byte("half"), 0o600))
	s = open(t, dir, Options{})
	left, err := os.ReadDir(s.tmp())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDiskFull(t *testing.T) {
	free := uint64(100)
	s := open(t, t.TempDir(), Options{MinFree: 90, FreeSpace: func(string) (uint64, error) { return free, nil }})
	d := put(t, s, "small")
	_, err := s.Put(bytes.Repeat([]byte("x"), 50))
	require.ErrorIs(t, err, ErrDiskFull)
	free = 0
	put(t, s, "small") // nothing to write
	_, err = s.Get(d)
	require.NoError(t, err)
	free = 1 << 20
	put(t, s, strings.Repeat("x", 50))
}

// TestCollect keeps what is live and what was put lately, a repeated put
// included.
func TestCollect(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	live, dead, fresh, again := put(t, s, "live"), put(t, s, "dead!"), put(t, s, "fresh"), put(t, s, "again")
	old := time.Now().Add(-time.Hour)
	for _, d := range []string{live, dead, again} {
		require.NoError(t, os.Chtimes(file(s, d), old, old))
	}
	put(t, s, "again") // its commit is on the way
	n, size, err := s.Collect(func(d string) bool { return d == live }, time.Now().Add(-time.Minute))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, int64(5), size)
	require.False(t, s.Has(dead))
	for _, d := range []string{live, fresh, again} {
		require.True(t, s.Has(d))
	}
	var listed []string
	require.NoError(t, s.List(func(d string, _ int64, _ time.Time) error { listed = append(listed, d); return nil }))
	require.ElementsMatch(t, []string{live, fresh, again}, listed)
}
