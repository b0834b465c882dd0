package replay

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay/table"
)

// noise is a record that does not compress, in a table or none.
func noise(id, tab string) Record {
	r := rand.New(rand.NewPCG(7, uint64(len(id))+uint64(id[len(id)-1])<<8+uint64(id[0])<<16))
	b := make([]byte, 100_000)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	copy(b, id)
	rec := demoRecord(id, len(b))
	rec.Bytes, rec.Item.Table, rec.Item.Group = b, tab, id
	return rec
}

// onDisk says whether bytes are in any segment file.
func onDisk(t *testing.T, dir string, b []byte) bool {
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*.seg"))
	require.NoError(t, err)
	for _, f := range files {
		have, err := os.ReadFile(f)
		require.NoError(t, err)
		if bytes.Contains(have, b) {
			return true
		}
	}
	return false
}

// TestCompact: what was never committed is gone from the disk; every committed
// log, leased or not, is as it was, also after a reopen.
func TestCompact(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	cfg := table.Default()
	apply(t, l, SetTableCmd{epoch, "r", "x", cfg, 0})
	var kept, lost []Record
	for i := range 40 {
		rec := noise(fmt.Sprintf("log%02d", i), "x")
		require.NoError(t, l.PutChunk(t.Context(), 1, []Record{rec}))
		if i%4 == 0 {
			kept = append(kept, rec)
			require.Equal(t, []AppendResult{{}}, apply(t, l, AppendItemsCmd{epoch, items(rec)}).Append)
		} else {
			lost = append(lost, rec)
		}
	}
	lease := apply(t, l, AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Table: "x", Holder: "h", Groups: 3, TTL: time.Hour}}).Lease
	require.NotNil(t, lease)
	files, err := l.seg.Sealed()
	require.NoError(t, err)
	require.Greater(t, len(files), 2)

	// Nothing is looked at before its time.
	rep, err := l.Compact(t.Context(), time.Now(), time.Hour, 0)
	require.NoError(t, err)
	require.Zero(t, rep)
	// A record that a producer comes back with stays.
	now := time.Now().Add(time.Hour)
	back := lost[0]
	lost = lost[1:]
	require.NoError(t, l.PutChunk(t.Context(), 1, []Record{back}))

	rep, err = l.Compact(t.Context(), now, time.Hour, 0.9)
	require.NoError(t, err)
	require.Zero(t, rep, "too much is in use")
	// Reads go on meanwhile.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				requireRecords(t, l, kept)
			}
		}
	})
	rep, err = l.Compact(t.Context(), now, time.Hour, 0.5)
	close(stop)
	wg.Wait()
	require.NoError(t, err)
	require.Equal(t, len(files), rep.Segments)
	require.Positive(t, rep.Moved)
	require.Greater(t, rep.Bytes, int64(rep.Dropped)*99_000)
	requireRecords(t, l, kept)
	gone := 0
	for _, r := range lost {
		has, err := l.Has([]Item{r.Item})
		require.NoError(t, err)
		if !has[0] {
			require.False(t, onDisk(t, dir, r.Bytes), "%s is on the disk", r.Item.LogID)
			gone++
		}
	}
	require.Equal(t, rep.Dropped, gone, "the file in use is not rewritten")
	apply(t, l, AppendItemsCmd{epoch, items(back)})
	kept = append(kept, back)
	requireRecords(t, l, kept)
	require.NoError(t, l.Close())

	again, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	defer again.Close()
	requireRecords(t, again, kept)
	missing, err := again.MissingPayloads(10)
	require.NoError(t, err)
	require.Empty(t, missing)
}

func requireRecords(t *testing.T, l *Local, want []Record) {
	got, missing, err := l.ReadRecords(ids(want...))
	require.NoError(t, err)
	require.Empty(t, missing)
	for i := range want {
		require.Equal(t, want[i].Item.LogID, got[i].Item.LogID)
		require.True(t, bytes.Equal(want[i].Bytes, got[i].Bytes), want[i].Item.LogID)
	}
}

// TestDeletedLogsAreGone: from every query at once, and from the disk with the
// next compaction.
func TestDeletedLogsAreGone(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	var recs []Record
	for i := range 25 {
		rec := noise(fmt.Sprintf("log%02d", i), "demo")
		recs = append(recs, rec)
		require.NoError(t, l.PutChunk(t.Context(), 1, []Record{rec}))
		apply(t, l, AppendItemsCmd{epoch, items(rec)})
	}
	require.Equal(t, 2, apply(t, l, DeleteLogsCmd{epoch, "r", []string{"log03", "log05", "none"}, "asked"}).Updated)
	_, _, err := l.ReadRecords([]string{"log03"})
	require.ErrorIs(t, err, ErrNotFound)
	require.True(t, onDisk(t, dir, recs[3].Bytes))
	_, err = l.Compact(t.Context(), time.Now().Add(time.Hour), time.Hour, 0)
	require.NoError(t, err)
	require.False(t, onDisk(t, dir, recs[3].Bytes))
	require.False(t, onDisk(t, dir, recs[5].Bytes))
	require.Equal(t, []AppendResult{{Duplicate: true}}, apply(t, l, AppendItemsCmd{epoch, items(recs[3])}).Append)

	// A replica that starts from a snapshot neither has nor misses them.
	var snap bytes.Buffer
	s := l.Snapshot()
	_, err = s.WriteTo(&snap)
	require.NoError(t, err)
	s.Close()
	other := openLocal(t, t.TempDir(), testOptions())
	require.NoError(t, other.Restore(&snap))
	missing, err := other.MissingPayloads(100)
	require.NoError(t, err)
	require.Len(t, missing, 23)
}

// TestCompactInterrupted: after copying, before the file goes, the storage
// stops; whichever copy the index names is whole.
func TestCompactInterrupted(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	var kept []Record
	for i := range 15 {
		rec := noise(fmt.Sprintf("log%02d", i), "demo")
		require.NoError(t, l.PutChunk(t.Context(), 1, []Record{rec}))
		if i%3 == 0 {
			kept = append(kept, rec)
			apply(t, l, AppendItemsCmd{epoch, items(rec)})
		}
	}
	files, err := l.seg.Sealed()
	require.NoError(t, err)
	path := filepath.Join(dir, "segments", fmt.Sprintf("%016x.seg", files[0].Number))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = l.Compact(t.Context(), time.Now().Add(time.Hour), time.Hour, 0)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(path, b, 0o600)) // as if the crash had come before

	again, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	requireRecords(t, again, kept)
	_, err = again.Compact(t.Context(), time.Now().Add(2*time.Hour), time.Hour, 0)
	require.NoError(t, err)
	require.NoFileExists(t, path)
	requireRecords(t, again, kept)
	require.NoError(t, again.Close())
}

// TestCompactLeavesDamage for repair.
func TestCompactLeavesDamage(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	for i := range 15 {
		require.NoError(t, l.PutChunk(t.Context(), 1, []Record{noise(fmt.Sprintf("log%02d", i), "demo")}))
	}
	files, err := l.seg.Sealed()
	require.NoError(t, err)
	path := filepath.Join(dir, "segments", fmt.Sprintf("%016x.seg", files[0].Number))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("damage"), 5000)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = l.Compact(t.Context(), time.Now().Add(time.Hour), time.Hour, 0)
	require.NoError(t, err)
	require.FileExists(t, path)
	_, err = l.Compact(t.Context(), time.Now(), 0, 0)
	require.ErrorIs(t, err, ErrInvalid)
}
