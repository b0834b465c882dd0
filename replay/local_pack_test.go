package replay

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay/segment"
)

// TestCompactPacks: logs that came one by one, groups in turn, are packed by group:
// the file is much smaller, every log is as it was, a second compaction has
// nothing to do, and a deleted log leaves its pack.
func TestCompactPacks(t *testing.T) {
	dir := t.TempDir()
	o := testOptions()
	o.SegmentBytes = 1 << 20
	l := openLocal(t, dir, o)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	const groups, members = 10, 8
	prompts := make([][]byte, groups)
	for g := range prompts {
		prompts[g] = random(20_000)
	}
	var all []Record
	for m := range members {
		for g := range groups {
			rec := demoRecord(fmt.Sprintf("log-%d-%d", g, m), 1)
			rec.Bytes = append(append([]byte(rec.Item.LogID), prompts[g]...), random(500)...)
			rec.Item.Size, rec.Item.Group = uint32(len(rec.Bytes)), fmt.Sprint("g", g)
			all = append(all, rec)
			require.NoError(t, l.PutChunk(t.Context(), 1, []Record{rec.Pack()}))
			require.Equal(t, []AppendResult{{}}, apply(t, l, AppendItemsCmd{epoch, items(rec)}).Append)
		}
	}
	require.NoError(t, l.seg.Seal(t.Context()))
	before := l.segmentBytes(t)
	now := time.Now().Add(time.Hour)
	rep, err := l.Compact(t.Context(), now, time.Hour, 0.3)
	require.NoError(t, err)
	require.Equal(t, len(all), rep.Moved)
	require.Zero(t, rep.Dropped)
	t.Logf("%d bytes, packed %d", before, l.segmentBytes(t))
	require.Less(t, l.segmentBytes(t), before/3, "ten prompts of 20,000 bytes, not eighty")
	check := func(want []Record) {
		t.Helper()
		recs, missing, err := l.ReadRecords(ids(want...))
		require.NoError(t, err)
		require.Empty(t, missing)
		require.Equal(t, want, recs)
	}
	check(all)
	rep, err = l.Compact(t.Context(), now.Add(time.Hour), time.Hour, 0.3)
	require.NoError(t, err)
	require.Zero(t, rep)

	// Packed logs are repaired, deleted and read after a restart like others.
	require.NoError(t, l.Close())
	l = openLocal(t, dir, o)
	check(all)
	gone := all[0]
	require.NoError(t, apply(t, l, DeleteLogsCmd{epoch, "r", []string{gone.Item.LogID}, "redacted"}).Err)
	require.NoError(t, l.seg.Seal(t.Context()))
	rep, err = l.Compact(t.Context(), time.Now().Add(time.Hour), time.Hour, 0.3)
	require.NoError(t, err)
	require.Equal(t, 1, rep.Dropped)
	check(all[1:])
	_, err = l.seg.Scan(t.Context(), segment.Position{}, func(e segment.Entry) error {
		require.NotEqual(t, gone.Item.LogID, e.ID)
		return nil
	})
	require.NoError(t, err)
}

func (l *Local) segmentBytes(t *testing.T) (n int64) {
	files, err := filepath.Glob(filepath.Join(l.dir, "segments", "*.seg"))
	require.NoError(t, err)
	for _, f := range files {
		st, err := os.Stat(f)
		require.NoError(t, err)
		n += st.Size()
	}
	return n
}
