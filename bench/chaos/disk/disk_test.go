package disk

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func testDisk(t *testing.T, strict bool) (*Disk, string) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	base := t.TempDir()
	dirs := []string{filepath.Join(base, "back"), filepath.Join(base, "mnt"), filepath.Join(base, "trash")}
	for _, d := range dirs {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	d, err := Mount(dirs[0], dirs[1], dirs[2], strict)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d, dirs[1]
}

func write(t *testing.T, path string, b []byte, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt(b, 0)
	require.NoError(t, err)
	if sync {
		require.NoError(t, f.Sync())
	}
	require.NoError(t, f.Close())
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// What was synced survives every cut; what was not is lost in some.
func TestPowerCut(t *testing.T) {
	for _, strict := range []bool{false, true} {
		d, dir := testDisk(t, strict)
		old, young := bytes.Repeat([]byte("o"), 3*pageSize), bytes.Repeat([]byte("y"), 4*pageSize)
		var lost, kept, torn, gone, back int
		for seed := range uint64(40) {
			a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
			write(t, a, old, true)
			write(t, c, old, true)
			syncDir(t, dir)
			write(t, a, young, false)
			got, err := os.ReadFile(a)
			require.NoError(t, err)
			require.Equal(t, young, got, "readers see what was written")
			write(t, b, young, false)
			require.NoError(t, os.Remove(c))
			d.Cut()
			_, err = os.OpenFile(filepath.Join(dir, "x"), os.O_CREATE|os.O_RDWR, 0o600)
			require.Error(t, err, "power is off")
			loss, err := d.Restore(rand.New(rand.NewPCG(seed, 1)))
			require.NoError(t, err)
			got, err = os.ReadFile(a)
			require.NoError(t, err, "its name was synced")
			require.GreaterOrEqual(t, len(got), len(old))
			if bytes.Equal(got, old) {
				lost++
			}
			if bytes.Equal(got, young) {
				kept++
			}
			torn += loss.Torn
			if _, err := os.Stat(b); err != nil {
				gone++
			}
			if got, err := os.ReadFile(c); err == nil {
				require.Equal(t, old, got)
				back++
			}
			_ = os.Remove(b)
		}
		for _, n := range []int{lost, kept, torn, gone, back} {
			require.NotZero(t, n, "%d lost %d kept %d torn %d gone %d back", lost, kept, torn, gone, back)
		}
	}
}

// A mapped file is durable when msync says so, and not before.
func TestMappedWritesNeedMsync(t *testing.T) {
	d, dir := testDisk(t, false)
	p := filepath.Join(dir, "m")
	lost := 0
	for seed := range uint64(12) {
		write(t, p, make([]byte, 2*pageSize), true)
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		require.NoError(t, err)
		m, err := syscall.Mmap(int(f.Fd()), 0, 2*pageSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_POPULATE)
		require.NoError(t, err)
		m[0] = 1
		require.NoError(t, unix.Msync(m, unix.MS_SYNC))
		m[pageSize] = 2
		d.Cut()
		require.NoError(t, syscall.Munmap(m))
		_ = f.Close()
		_, err = d.Restore(rand.New(rand.NewPCG(seed, 2)))
		require.NoError(t, err)
		got, err := os.ReadFile(p)
		require.NoError(t, err)
		require.EqualValues(t, 1, got[0])
		if got[pageSize] == 0 {
			lost++
		}
		require.NoError(t, os.Remove(p))
		syncDir(t, dir)
	}
	require.NotZero(t, lost)
}

// A rename over a file that was not synced shows the old file or the new one.
func TestRenameIsWhole(t *testing.T) {
	d, dir := testDisk(t, true)
	var old, young int
	for seed := range uint64(20) {
		p := filepath.Join(dir, "f")
		write(t, p, []byte("old"), true)
		syncDir(t, dir)
		write(t, p+".tmp", []byte("new"), true)
		require.NoError(t, os.Rename(p+".tmp", p))
		d.Cut()
		_, err := d.Restore(rand.New(rand.NewPCG(seed, 3)))
		require.NoError(t, err)
		got, err := os.ReadFile(p)
		require.NoError(t, err)
		switch string(got) {
		case "old":
			old++
		case "new":
			young++
		default:
			t.Fatalf("got %q", got)
		}
		_ = os.Remove(p + ".tmp")
	}
	require.NotZero(t, old)
	require.NotZero(t, young)
}

func TestFailingAndStalledDisk(t *testing.T) {
	d, dir := testDisk(t, false)
	p := filepath.Join(dir, "f")
	write(t, p, []byte("x"), true)
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	d.Set(Faults{Fail: 1})
	_, werr := f.WriteAt([]byte("y"), 0)
	require.Error(t, werr)
	require.Error(t, f.Sync())
	d.Set(Faults{})
	_, err = f.WriteAt([]byte("z"), 0)
	require.NoError(t, err)
	release := d.Stall()
	done := make(chan error, 1)
	go func() { done <- f.Sync() }()
	select {
	case <-done:
		t.Fatal("did not wait")
	default:
	}
	release()
	require.NoError(t, <-done)
}
