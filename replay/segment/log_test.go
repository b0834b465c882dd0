package segment

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rec(i, size int) Record {
	return Record{ID: fmt.Sprintf("log-%d", i), Digest: fmt.Sprintf("d%d", i), Bytes: bytes.Repeat([]byte{byte(i)}, size), Size: size}
}

// lines is text like a log's: repetitive, but no bomb.
func lines(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "turn %d: look up item %d, add %d\n", i, i*7919%1000, i*104729%97)
	}
	return b.Bytes()
}

// encoded puts a record behind b as it stands in a file.
func encoded(t testing.TB, b []byte, r Record, compress bool) []byte {
	t.Helper()
	if z := Compress(r.Bytes); compress && z != nil {
		r.Zstd, r.Bytes = z, nil
	}
	b, payload, err := appendHeader(b, r, 0)
	require.NoError(t, err)
	return append(b, payload...)
}

func open(t testing.TB, dir string, opts Options) *Log {
	t.Helper()
	l, err := Open(dir, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func appendAll(t testing.TB, l *Log, recs ...Record) []Entry {
	t.Helper()
	es, err := l.Append(context.Background(), recs)
	require.NoError(t, err)
	return es
}

func scanIDs(t testing.TB, l *Log, from Position) ([]string, []Gap) {
	t.Helper()
	var ids []string
	gaps, err := l.Scan(context.Background(), from, func(e Entry) error {
		ids = append(ids, e.ID)
		return nil
	})
	require.NoError(t, err)
	return ids, gaps
}

func TestRoundTripAcrossReopen(t *testing.T) {
	dir := t.TempDir()
	random := make([]byte, 5000)
	_, err := rand.Read(random)
	require.NoError(t, err)
	recs := []Record{rec(1, 0), rec(2, 10), {ID: "log-3", Digest: "d3", Bytes: lines(2000)}, {ID: "r\x00\xff", Digest: "", Bytes: random}}
	for _, compress := range []bool{false, true} {
		sub := filepath.Join(dir, fmt.Sprint(compress))
		l, err := Open(sub, Options{})
		require.NoError(t, err)
		stored := slices.Clone(recs)
		if compress {
			require.Nil(t, Compress(random), "random bytes do not shrink")
			stored[2].Zstd, stored[2].Size, stored[2].Bytes = Compress(recs[2].Bytes), len(recs[2].Bytes), nil
		}
		es := appendAll(t, l, stored...)
		for i, e := range es {
			got, err := l.Read(e.Pos)
			require.NoError(t, err)
			require.Equal(t, recs[i].ID, got.ID)
			require.Equal(t, recs[i].Digest, got.Digest)
			require.True(t, bytes.Equal(recs[i].Bytes, got.Bytes))
			require.Equal(t, len(recs[i].Bytes), e.Size)
		}
		require.NoError(t, l.Close())
		l = open(t, sub, Options{})
		require.Zero(t, l.Stats().TornBytes)
		ids, gaps := scanIDs(t, l, Position{})
		require.Empty(t, gaps)
		require.Equal(t, []string{"log-1", "log-2", "log-3", "r\x00\xff"}, ids)
		// Scanning from a record's own position begins with it.
		ids, _ = scanIDs(t, l, es[2].Pos)
		require.Equal(t, []string{"log-3", "r\x00\xff"}, ids)
		more := appendAll(t, l, rec(9, 3))
		require.Positive(t, more[0].Pos.Compare(es[3].Pos))
	}
	small, err := os.Stat(filepath.Join(dir, "true", "0000000000000001.seg"))
	require.NoError(t, err)
	require.Less(t, small.Size(), int64(len(lines(2000))/2), "text was not compressed")
}

func TestRollsAtSize(t *testing.T) {
	l := open(t, t.TempDir(), Options{MaxBytes: 1000})
	var want []string
	for i := range 20 {
		es := appendAll(t, l, rec(i, 300))
		want = append(want, es[0].ID)
	}
	require.Equal(t, 10, l.Stats().Segments) // two of 330 bytes fit into 1000
	ids, gaps := scanIDs(t, l, Position{})
	require.Equal(t, want, ids)
	require.Empty(t, gaps)
}

// TestAppendersShareSyncs: concurrent appenders are one group; every one finds
// its own records.
func TestAppendersShareSyncs(t *testing.T) {
	var order []Position
	l := open(t, t.TempDir(), Options{OnDurable: func(es []Entry) {
		for _, e := range es {
			order = append(order, e.Pos)
		}
	}})
	const workers, each = 64, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				es, err := l.Append(context.Background(), []Record{{ID: id, Bytes: []byte(id)}})
				if err != nil {
					t.Error(err)
					return
				}
				got, err := l.Read(es[0].Pos)
				if err != nil || string(got.Bytes) != id {
					t.Errorf("%s: read %q, %v", id, got.Bytes, err)
				}
			}
		})
	}
	wg.Wait()
	s := l.Stats()
	require.Equal(t, uint64(workers*each), s.Records)
	require.Less(t, s.Syncs, s.Records/2, "no group commit")
	require.Len(t, order, workers*each)
	for i := 1; i < len(order); i++ {
		require.Negative(t, order[i-1].Compare(order[i]), "entries out of order")
	}
}

// TestTornTail cuts the file at every byte: what was whole stays, the rest is
// cut and counted, and appending goes on.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	es := appendAll(t, l, rec(1, 20), rec(2, 40), rec(3, 60))
	require.NoError(t, l.Close())
	name := filepath.Join(dir, "0000000000000001.seg")
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	for cut := 0; cut < len(whole); cut++ {
		require.NoError(t, os.WriteFile(name, whole[:cut], 0o600))
		l, err := Open(dir, Options{})
		require.NoError(t, err, "cut at %d", cut)
		var want []string
		end := int64(fileHeader)
		for i, e := range es {
			next := int64(len(whole))
			if i+1 < len(es) {
				next = es[i+1].Pos.Offset
			}
			if next <= int64(cut) {
				want = append(want, e.ID)
				end = next
			}
		}
		torn := int64(cut) - end
		if cut < fileHeader {
			torn = int64(cut)
		}
		require.Equal(t, torn, l.Stats().TornBytes, "cut at %d", cut)
		appendAll(t, l, rec(7, 5))
		ids, gaps := scanIDs(t, l, Position{})
		require.Empty(t, gaps)
		require.Equal(t, append(want, "log-7"), ids, "cut at %d", cut)
		require.NoError(t, l.Close())
		require.NoError(t, os.Remove(name))
	}
}

// TestDamageIsNeverCut flips every byte of the middle record: it is lost, its
// neighbours are not, and nothing is truncated.
func TestDamageIsNeverCut(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	es := appendAll(t, l, rec(1, 20), rec(2, 40), rec(3, 60))
	require.NoError(t, l.Close())
	name := filepath.Join(dir, "0000000000000001.seg")
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	for at := es[1].Pos.Offset; at < es[2].Pos.Offset; at++ {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x55
		require.NoError(t, os.WriteFile(name, bad, 0o600))
		l, err := Open(dir, Options{})
		require.NoError(t, err)
		require.Zero(t, l.Stats().TornBytes)
		require.Equal(t, es[2].Pos.Offset-es[1].Pos.Offset, l.Stats().CorruptBytes)
		ids, gaps := scanIDs(t, l, Position{})
		require.Equal(t, []string{"log-1", "log-3"}, ids, "byte %d", at)
		require.Len(t, gaps, 1)
		require.Equal(t, es[1].Pos, gaps[0].Pos)
		require.ErrorIs(t, gaps[0].Cause, ErrCorrupt)
		_, err = l.Read(es[1].Pos)
		require.ErrorIs(t, err, ErrCorrupt)
		got, err := l.Read(es[2].Pos)
		require.NoError(t, err)
		require.Equal(t, rec(3, 60), got)
		require.NoError(t, l.Close())
		st, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, int64(len(whole)), st.Size())
	}
}

// TestPayloadThatLooksLikeRecords: a payload full of record magic and even of a
// whole valid record does not confuse recovery of what follows.
func TestPayloadThatLooksLikeRecords(t *testing.T) {
	inner := encoded(t, nil, rec(42, 30), false)
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	appendAll(t, l, Record{ID: "outer", Bytes: append(bytes.Repeat([]byte(recordMagic), 100_000), inner...)}, rec(2, 5))
	require.NoError(t, l.Close())
	l = open(t, dir, Options{})
	ids, gaps := scanIDs(t, l, Position{})
	require.Equal(t, []string{"outer", "log-2"}, ids)
	require.Empty(t, gaps)
}

// TestDiskFull: the watermark refuses before writing, and appends go on when
// space is back, without a restart.
func TestDiskFull(t *testing.T) {
	var free atomic.Uint64
	free.Store(10_000)
	l := open(t, t.TempDir(), Options{MinFree: 9000, FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
	appendAll(t, l, rec(1, 100))
	before := l.Stats().Bytes
	_, err := l.Append(context.Background(), []Record{rec(2, 2000)})
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorContains(t, err, "10000 bytes free")
	free.Store(100)
	_, err = l.Append(context.Background(), []Record{rec(3, 1)})
	require.ErrorIs(t, err, ErrDiskFull)
	require.Equal(t, before, l.Stats().Bytes)
	require.Equal(t, uint64(2), l.Stats().Refused)
	free.Store(1 << 30)
	appendAll(t, l, rec(4, 2000))
	ids, _ := scanIDs(t, l, Position{})
	require.Equal(t, []string{"log-1", "log-4"}, ids)
	boom := errors.New("statfs broke")
	l.opts.FreeSpace = func(string) (uint64, error) { return 0, boom }
	_, err = l.Append(context.Background(), []Record{rec(5, 1)})
	require.ErrorIs(t, err, boom)
}

// TestFailedWriteLeavesTheFileBehind: after a write that failed, the next append
// goes to a new file and nothing acknowledged is lost.
func TestFailedWriteLeavesTheFileBehind(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	appendAll(t, l, rec(1, 10))
	require.NoError(t, l.f.Close()) // every operation on it fails from now on
	_, err := l.Append(context.Background(), []Record{rec(2, 10)})
	require.Error(t, err)
	// roll closes the old file and fails on it once more; the new one is there.
	_, _ = l.Append(context.Background(), []Record{rec(3, 10)})
	appendAll(t, l, rec(4, 10))
	require.Equal(t, 2, l.Stats().Segments)
	ids, _ := scanIDs(t, l, Position{})
	require.Equal(t, "log-1", ids[0])
	require.Equal(t, "log-4", ids[len(ids)-1])
	require.NotContains(t, ids, "log-2")
}

// A record whose sync failed was refused: it is cut off, and does not come back
// from the page cache. Where even that fails, SyncFrom makes it durable before
// anybody relies on it.
func TestFailedSyncIsCutOff(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	appendAll(t, l, rec(1, 10))
	l.sync = func(*os.File) error { return errors.New("input/output error") }
	_, err := l.Append(context.Background(), []Record{rec(2, 10)})
	require.ErrorContains(t, err, "input/output")
	l.sync = (*os.File).Sync
	appendAll(t, l, rec(3, 10))
	require.Equal(t, 2, l.Stats().Segments)
	ids, gaps := scanIDs(t, l, Position{})
	require.Empty(t, gaps)
	require.Equal(t, []string{"log-1", "log-3"}, ids)

	var synced []string
	l.sync = func(f *os.File) error { synced = append(synced, filepath.Base(f.Name())); return f.Sync() }
	require.NoError(t, l.SyncFrom(2))
	require.Equal(t, []string{"0000000000000002.seg"}, synced)
	require.NoError(t, l.SyncFrom(0))
	require.Len(t, synced, 3)
	l.sync = func(*os.File) error { return errors.New("input/output error") }
	require.ErrorContains(t, l.SyncFrom(1), "segment 1")
	l.sync = (*os.File).Sync
}

// A file that could not be taken away again does not block the log.
func TestRollPassesAFileThatIsThere(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	appendAll(t, l, rec(1, 10))
	require.NoError(t, os.WriteFile(l.path(2), []byte("half a hea"), 0o600))
	l.sync = func(*os.File) error { return errors.New("input/output error") }
	_, err := l.Append(context.Background(), []Record{rec(2, 10)})
	require.Error(t, err)
	l.sync = (*os.File).Sync
	appendAll(t, l, rec(3, 10))
	require.NoError(t, l.Close())
	l = open(t, dir, Options{})
	ids, _ := scanIDs(t, l, Position{})
	require.Equal(t, []string{"log-1", "log-3"}, ids)
	appendAll(t, l, rec(4, 10))
}

func TestAppendAfterCloseAndCancelled(t *testing.T) {
	l, err := Open(t.TempDir(), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Append(ctx, []Record{rec(1, 1)}); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = l.Append(context.Background(), []Record{rec(1, 1)})
	require.ErrorIs(t, err, ErrClosed)
}

func TestRefusesOversizedRecords(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	for name, r := range map[string]Record{
		"record id of 0":   {},
		"record id of 500": {ID: string(make([]byte, 5000))},
		"digest of 300":    {ID: "x", Digest: string(make([]byte, 300))},
	} {
		_, err := l.Append(context.Background(), []Record{r})
		require.ErrorContains(t, err, name)
	}
}

// TestForeignFiles: other names are ignored, a file of another version or number
// is an error that says so.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600))
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	appendAll(t, l, rec(1, 10))
	require.NoError(t, l.Close())
	first := filepath.Join(dir, "0000000000000001.seg")
	b, err := os.ReadFile(first)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "0000000000000002.seg"), b, 0o600))
	_, err = Open(dir, Options{})
	require.ErrorContains(t, err, "renamed?")
}

// FuzzReader gives the reader any bytes at all: it returns records or errors,
// and what it accepts it gives back unchanged.
func FuzzReader(f *testing.F) {
	for _, compress := range []bool{false, true} {
		b := encodeFileHeader(1)
		for i := range 3 {
			b = encoded(f, b, rec(i, 600*i), compress)
		}
		f.Add(b)
		f.Add(b[:len(b)-7])
		f.Add(append(bytes.Clone(b[:60]), b[80:]...))
	}
	packed, err := encodeGroup(group(f, "g", 3))
	require.NoError(f, err)
	b := bytes.Join(append([][]byte{encodeFileHeader(1)}, packed.parts...), nil)
	f.Add(b)
	f.Add(append(bytes.Clone(b[:fileHeader+50]), b[fileHeader+60:]...))
	f.Add([]byte(fileMagic + recordMagic + recordMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		covered := int64(fileHeader)
		err := scanFile(r, 1, fileHeader, int64(len(b)),
			func(e Entry, next int64) error {
				if e.Pos.Offset != covered || next <= covered {
					t.Fatalf("record at %d to %d, expected at %d", e.Pos.Offset, next, covered)
				}
				covered = next
				if e.ID == "" {
					return nil // a pack
				}
				got, err := readRecord(r, e.Pos.Offset, int64(len(b)), new(unpacked).get(1))
				if err == nil && len(got.Zstd) > 0 {
					got.Bytes, err = Decompress(got.Zstd, got.Size)
				}
				if err != nil {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					return nil // CRC fine, zstd not: only a forger gets here
				}
				if got.ID != e.ID || got.Digest != e.Digest || len(got.Bytes) != e.Size {
					t.Fatalf("record %+v read as %q", e, got.ID)
				}
				return nil
			},
			func(g Gap) error {
				if g.Pos.Offset != covered || g.Bytes <= 0 {
					t.Fatalf("gap %+v, expected at %d", g, covered)
				}
				covered += g.Bytes
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		if covered != max(int64(len(b)), fileHeader) {
			t.Fatalf("covered %d of %d bytes", covered, len(b))
		}
	})
}

func BenchmarkAppend8K(b *testing.B) {
	l := open(b, b.TempDir(), Options{})
	payload := make([]byte, 8<<10)
	_, err := rand.Read(payload)
	require.NoError(b, err)
	b.SetBytes(int64(len(payload)))
	b.SetParallelism(64)
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := l.Append(context.Background(), []Record{{ID: fmt.Sprint(n.Add(1)), Bytes: payload}}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(l.Stats().Records)/float64(l.Stats().Syncs), "records/sync")
}
