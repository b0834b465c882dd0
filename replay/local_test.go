package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay/segment"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func testOptions() LocalOptions {
	o := DefaultLocalOptions()
	o.MinFreeBytes = 0
	o.SegmentBytes = 1 << 20
	return o
}

func openLocal(t testing.TB, dir string, o LocalOptions) *Local {
	t.Helper()
	l, err := OpenLocal(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// demoRecord is a log of a table without groups.
func demoRecord(id string, size int) Record {
	b := bytes.Repeat([]byte(id+"\n"), size/(len(id)+1)+1)[:size]
	return Record{Bytes: b, Item: Item{LogID: id, Run: "r", Table: "demo", Group: "g", Member: 0, GroupSize: 1,
		Status: uint8(eventlog.OK), Digest: "d:" + id, Size: uint32(size), Tokens: 1}}
}

func cmd(t testing.TB, index uint64, c Command) Entry {
	t.Helper()
	b, err := EncodeCommand(c)
	require.NoError(t, err)
	return Entry{index, b}
}

var testSpec = RunSpec{Run: "r", GroupSize: 2, GroupsPerStep: 2, MaxStaleness: 1, TicketTTL: time.Minute, MaxAttempts: 2, Config: []byte("a: 1\n")}

func apply(t testing.TB, l *Local, c Command) Result {
	t.Helper()
	res, err := l.ApplyBatch([]Entry{cmd(t, l.AppliedIndex()+1, c)})
	require.NoError(t, err)
	return res[0]
}

func items(recs ...Record) []Item {
	var out []Item
	for _, r := range recs {
		out = append(out, r.Item)
	}
	return out
}

func ids(recs ...Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, r.Item.LogID)
	}
	return out
}

func stateDump(t testing.TB, l *Local) []string {
	var out []string
	require.NoError(t, l.View(func(kv Reader) error { out = dump(t, kv); return nil }))
	return out
}

func TestLocalRoundTripAcrossReopen(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	require.NoError(t, apply(t, l, CreateRunCmd{epoch, testSpec}).Err)
	a, b := demoRecord("a", 10), demoRecord("b", 5000)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{a, b}))
	_, _, err = l.ReadRecords(ids(a))
	require.ErrorIs(t, err, ErrNotFound, "not committed yet")
	require.Equal(t, []AppendResult{{}, {}}, apply(t, l, AppendItemsCmd{epoch, items(a, b)}).Append)
	digest, err := l.PutBlob([]byte("adapter"))
	require.NoError(t, err)
	for range 2 {
		got, missing, err := l.ReadRecords(ids(b, a))
		require.NoError(t, err)
		require.Empty(t, missing)
		require.Equal(t, []Record{b, a}, got)
		has, err := l.Has(items(a, demoRecord("c", 1)))
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, has)
		require.Equal(t, uint64(2), l.AppliedIndex())
		require.Equal(t, uint64(1), l.Term())
		blob, err := l.GetBlob(digest)
		require.NoError(t, err)
		require.Equal(t, "adapter", string(blob))
		require.NoError(t, l.View(func(kv Reader) error {
			st, err := Status(kv, "r")
			require.Equal(t, testSpec, st.Spec)
			return err
		}))
		_, err = OpenLocal(dir, testOptions())
		require.ErrorContains(t, err, "in use by another process")
		require.NoError(t, l.Close())
		l, err = OpenLocal(dir, testOptions())
		require.NoError(t, err)
	}
	_, err = l.GetBlob("blake3:" + strings.Repeat("0", 64))
	require.ErrorIs(t, err, ErrNotFound)
	_, err = l.GetBlob("adapter")
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}

// TestFencing: a writer of an older term gets no acknowledgement, after a
// restart neither.
func TestFencing(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	require.NoError(t, l.PutChunk(ctx, 3, []Record{demoRecord("a", 1)}))
	err = l.PutChunk(ctx, 2, []Record{demoRecord("b", 1)})
	require.ErrorIs(t, err, ErrStale)
	require.ErrorContains(t, err, "term 2")
	require.NoError(t, l.Fence(5))
	require.NoError(t, l.Fence(4)) // never back
	require.ErrorIs(t, l.PutChunk(ctx, 4, nil), ErrStale)
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	require.Equal(t, uint64(5), l.Term())
	require.ErrorIs(t, l.PutChunk(ctx, 4, []Record{demoRecord("b", 1)}), ErrStale)
	require.NoError(t, l.PutChunk(ctx, 5, []Record{demoRecord("b", 1)}))
}

// TestFencedWhileWriting: the fence falls between write and acknowledgement.
func TestFencedWhileWriting(t *testing.T) {
	var l *Local
	o := testOptions()
	o.MinFreeBytes = 1
	o.FreeSpace = func(string) (uint64, error) {
		if l != nil { // called by the writer, after PutChunk looked at the term
			_ = l.Fence(9)
		}
		return 1 << 40, nil
	}
	opened := openLocal(t, t.TempDir(), o)
	require.NoError(t, opened.PutChunk(context.Background(), 1, []Record{demoRecord("a", 1)}))
	l = opened
	require.ErrorIs(t, l.PutChunk(context.Background(), 1, []Record{demoRecord("b", 1)}), ErrStale)
	l = nil
}

func TestPutChunkRefusesBadRecords(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	for want, change := range map[string]func(*Record){
		"Size = 1, it has 4 bytes": func(r *Record) { r.Item.Size = 1 },
		"LogID is empty":           func(r *Record) { r.Item.LogID = "" },
		"not UTF-8":                func(r *Record) { r.Item.Task = "\xff" },
		"Status = 0":               func(r *Record) { r.Item.Status = 0 },
		"Cause is empty":           func(r *Record) { r.Item.Status = uint8(eventlog.Failed) },
		"Member 3 of GroupSize 1":  func(r *Record) { r.Item.Member = 3 },
		"MinVersion 2 above":       func(r *Record) { r.Item.MinVersion = 2 },
	} {
		r := demoRecord("a", 4)
		change(&r)
		err := l.PutChunk(context.Background(), 1, []Record{demoRecord("b", 1), r})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	has, err := l.Has(items(demoRecord("b", 1)))
	require.NoError(t, err)
	require.False(t, has[0], "a refused chunk left a record behind")
}

// TestMissingPayloads: ids committed before the bytes are here are listed until
// they are, across a restart; bytes of another attempt don't count.
func TestMissingPayloads(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	a, b, c := demoRecord("a", 10), demoRecord("b", 10), demoRecord("c", 10)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{a}))
	apply(t, l, AppendItemsCmd{epoch, items(a, b, c)})
	missing, err := l.MissingPayloads(10)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, ids(Record{Item: missing[0]}, Record{Item: missing[1]}))
	missing, err = l.MissingPayloads(1)
	require.NoError(t, err)
	require.Len(t, missing, 1)
	recs, miss, err := l.ReadRecords(ids(a, b))
	require.NoError(t, err)
	require.Equal(t, a, recs[0])
	require.Nil(t, recs[1].Bytes)
	require.Equal(t, items(b), miss)

	loser := b
	loser.Item.Digest, loser.Bytes = "d:other", []byte("0123456789")
	require.NoError(t, l.PutChunk(ctx, 1, []Record{loser}))
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	missing, err = l.MissingPayloads(10)
	require.NoError(t, err)
	require.Equal(t, items(b, c), missing)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{b, c}))
	require.Eventually(t, func() bool {
		missing, err := l.MissingPayloads(10)
		return err == nil && len(missing) == 0
	}, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { // and the marks go
		txn := l.db.begin()
		defer txn.Discard()
		some, err := hasAny(txnReader{txn: txn}, []byte{spaceMissing})
		return err == nil && !some
	}, 30*time.Second, time.Millisecond)
	recs, miss, err = l.ReadRecords(ids(b))
	require.NoError(t, err)
	require.Empty(t, miss)
	require.Equal(t, b, recs[0])
}

// TestUnindexedPayloadIsFound: a crash between a segment's sync and the index
// write loses nothing: the next open finds the record.
func TestUnindexedPayloadIsFound(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	a, b := demoRecord("a", 10), demoRecord("b", 10)
	require.NoError(t, l.PutChunk(context.Background(), 1, []Record{a}))
	apply(t, l, AppendItemsCmd{epoch, items(a, b)}) // b is missing here
	require.NoError(t, l.Close())
	seg, err := segment.Open(filepath.Join(dir, "segments"), segment.Options{})
	require.NoError(t, err)
	_, err = seg.Append(context.Background(), []segment.Record{{ID: "b", Digest: b.Item.Digest, Bytes: b.Bytes}})
	require.NoError(t, err)
	require.NoError(t, seg.Close())
	l = openLocal(t, dir, testOptions())
	recs, missing, err := l.ReadRecords(ids(a, b))
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, []Record{a, b}, recs)
	missing, err = l.MissingPayloads(10)
	require.NoError(t, err)
	require.Empty(t, missing)
}

// TestDamagedPayloadIsRepaired: damage on the device is found when read, listed
// as missing, and healed by putting the bytes again.
func TestDamagedPayloadIsRepaired(t *testing.T) {
	dir := t.TempDir()
	o := testOptions()
	l, err := OpenLocal(dir, o)
	require.NoError(t, err)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	a, b := demoRecord("aaaa", 100), demoRecord("bbbb", 100)
	require.NoError(t, l.PutChunk(context.Background(), 1, []Record{a, b}))
	apply(t, l, AppendItemsCmd{epoch, items(a, b)})
	require.NoError(t, l.Close())

	seg := filepath.Join(dir, "segments", "0000000000000001.seg")
	raw, err := os.ReadFile(seg)
	require.NoError(t, err)
	raw[bytes.Index(raw, a.Bytes)+50] ^= 1
	require.NoError(t, os.WriteFile(seg, raw, 0o600))

	l = openLocal(t, dir, o)
	recs, missing, err := l.ReadRecords(ids(a, b))
	require.NoError(t, err)
	require.Nil(t, recs[0].Bytes)
	require.Equal(t, b, recs[1])
	require.Equal(t, items(a), missing)
	missing, err = l.MissingPayloads(10)
	require.NoError(t, err)
	require.Equal(t, items(a), missing)
	require.NoError(t, l.PutChunk(context.Background(), 1, []Record{a}))
	recs, missing, err = l.ReadRecords(ids(a, b))
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, []Record{a, b}, recs)
}

// TestScrub finds damage that nobody has read yet.
func TestScrub(t *testing.T) {
	dir := t.TempDir()
	o := testOptions()
	l := openLocal(t, dir, o)
	ctx := context.Background()
	apply(t, l, CreateRunCmd{epoch, testSpec})
	a, b, c := demoRecord("aa\x00aa", 100), demoRecord("bbbb", 100), demoRecord("cccc", 100)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{a, b, c}))
	apply(t, l, AppendItemsCmd{epoch, items(a, b, c)})
	rep, err := l.Scrub(ctx)
	require.NoError(t, err)
	require.Equal(t, ScrubReport{Records: 3}, rep)
	require.Eventually(t, func() bool { // the index write comes behind
		txn := l.db.begin()
		defer txn.Discard()
		_, ok, err := txnReader{txn: txn}.Get(payloadKey(c.Item.LogID, c.Item.Digest))
		return err == nil && ok
	}, 30*time.Second, time.Millisecond)

	f, err := os.OpenFile(filepath.Join(dir, "segments", "0000000000000001.seg"), os.O_RDWR, 0)
	require.NoError(t, err)
	raw, err := io.ReadAll(f)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, int64(bytes.Index(raw, a.Bytes)+50))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	rep, err = l.Scrub(ctx)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 1}, []int{rep.Records, rep.Gaps, rep.Lost})
	missing, err := l.MissingPayloads(10)
	require.NoError(t, err)
	require.Equal(t, items(a), missing)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{a}))
	rep, err = l.Scrub(ctx)
	require.NoError(t, err)
	require.Equal(t, 0, rep.Lost)
	recs, missing, err := l.ReadRecords(ids(a))
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, a, recs[0])
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Scrub(cancelled)
	require.ErrorIs(t, err, context.Canceled)
}

// TestLocalDiskFull: appends and blobs are refused with the reason, reads and
// commits go on, and so do appends when space is back.
func TestLocalDiskFull(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	o := testOptions()
	o.MinFreeBytes = 1 << 30
	o.FreeSpace = func(string) (uint64, error) { return free.Load(), nil }
	reg := prometheus.NewRegistry()
	o.Registerer = reg
	l := openLocal(t, t.TempDir(), o)
	ctx := context.Background()
	apply(t, l, CreateRunCmd{epoch, testSpec})
	a := demoRecord("a", 10)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{a}))
	free.Store(1 << 29)
	require.ErrorIs(t, l.PutChunk(ctx, 1, []Record{demoRecord("b", 10)}), ErrDiskFull)
	_, err := l.PutBlob([]byte("x"))
	require.ErrorIs(t, err, ErrDiskFull)
	_, full, err := l.Space()
	require.NoError(t, err)
	require.True(t, full)
	require.Equal(t, []AppendResult{{}}, apply(t, l, AppendItemsCmd{epoch, items(a)}).Append)
	recs, _, err := l.ReadRecords(ids(a))
	require.NoError(t, err)
	require.Equal(t, a, recs[0])
	free.Store(1 << 40)
	require.NoError(t, l.PutChunk(ctx, 1, []Record{demoRecord("b", 10)}))

	free.Store(1 << 10) // too little to open safely
	other := o
	other.Registerer = nil
	_, err = OpenLocal(t.TempDir(), other)
	require.ErrorIs(t, err, ErrDiskFull)
	free.Store(1 << 40)

	families, err := reg.Gather()
	require.NoError(t, err)
	seen := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		seen[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	require.Equal(t, 2.0, seen["skein_replay_payloads_total"])
	require.Equal(t, 2.0, seen["skein_replay_disk_full_refusals_total"])
}

// TestApplySkipsWhatIsApplied: raft replays from its snapshot on; nothing counts
// twice, whatever the batches were.
func TestApplySkipsWhatIsApplied(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	var log []Entry
	log = append(log, cmd(t, 1, CreateRunCmd{epoch, testSpec}))
	for i := range 9 {
		log = append(log, cmd(t, uint64(i+2), TakeTicketsCmd{epoch, "r", fmt.Sprintf("w%d", i), 1, ""}))
	}
	_, err = l.ApplyBatch(log[:4])
	require.NoError(t, err)
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	res, err := l.ApplyBatch(log[2:])
	require.NoError(t, err)
	require.Empty(t, res[1].Tickets)
	require.Len(t, res[2].Tickets, 1)
	require.Equal(t, uint64(3), res[2].Tickets[0].Index)
	require.Equal(t, uint64(10), l.AppliedIndex())

	plain := NewMemKV()
	for _, e := range log {
		c, err := DecodeCommand(e.Cmd)
		require.NoError(t, err)
		_, err = Apply(plain, c)
		require.NoError(t, err)
	}
	require.Equal(t, dump(t, plain), stateDump(t, l))
}

// TestApplyStopsAtWhatItCannotRead: a command of a newer build stops this node
// before it could differ from the others.
func TestApplyStopsAtWhatItCannotRead(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	before := stateDump(t, l)
	good := cmd(t, 2, TakeTicketsCmd{epoch, "r", "w", 1, ""})
	_, err := l.ApplyBatch([]Entry{good, {3, []byte{0xfa, 0x01, 0x00}}})
	require.ErrorContains(t, err, "newer version")
	require.Equal(t, before, stateDump(t, l))
	require.Equal(t, uint64(1), l.AppliedIndex())
	_, err = l.ApplyBatch([]Entry{good})
	require.Error(t, err, "went on after it broke")
}

// bigBatch is far above one Badger transaction.
func bigBatch(t testing.TB, n int) AppendItemsCmd {
	c := AppendItemsCmd{Now: epoch}
	for i := range n {
		c.Items = append(c.Items, demoRecord(fmt.Sprintf("log-%d", i), 1).Item)
	}
	return c
}

// TestLargeBatchIsAtomic: a batch larger than a transaction is applied whole,
// readers see all of it or nothing, and it survives a reopen.
func TestLargeBatchIsAtomic(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	const n = 12000
	require.Less(t, l.db.db.MaxBatchCount(), int64(3*n))

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := l.View(func(kv Reader) error {
				st, err := Status(kv, "r")
				if err != nil {
					return err
				}
				// Keys of the scan come first in the batch, the run's last.
				some, _, err := ScanItems(kv, "r", "demo", "", 1)
				if err != nil || (len(some) > 0) != (st.Appended == n) {
					return fmt.Errorf("appended %d, items %v: %v", st.Appended, some, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	res := apply(t, l, bigBatch(t, n))
	close(stop)
	wg.Wait()
	require.Len(t, res.Append, n)
	want := stateDump(t, l)
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	require.Equal(t, want, stateDump(t, l))
	require.Equal(t, uint64(2), l.AppliedIndex())
	missing, err := l.MissingPayloads(n + 1)
	require.NoError(t, err)
	require.Len(t, missing, n)
	requireNoJournal(t, l)
}

func requireNoJournal(t testing.TB, l *Local) {
	txn := l.db.begin()
	defer txn.Discard()
	some, err := hasAny(txnReader{txn: txn}, []byte{spaceJournal})
	require.NoError(t, err)
	require.False(t, some)
	_, marked, err := getU64(txn, metaJournal)
	require.NoError(t, err)
	require.False(t, marked)
}

// TestRedoJournal crashes between and within all stages of a large batch:
// before the mark nothing happened, after it everything did.
func TestRedoJournal(t *testing.T) {
	batch := []write{{metaApplied, u64(7)}}
	for i := range 3000 {
		batch = append(batch, write{append(statePrefix(0), fmt.Sprintf("k%06d", i)...), []byte("new")})
	}
	for i := range 100 {
		batch = append(batch, write{key: append(statePrefix(0), fmt.Sprintf("old%d", i)...)})
	}
	for stage := range 8 {
		t.Run(fmt.Sprint(stage), func(t *testing.T) {
			dir := t.TempDir()
			l, err := OpenLocal(dir, testOptions())
			require.NoError(t, err)
			for i := range 100 {
				require.NoError(t, l.db.db.Update(func(txn *badger.Txn) error {
					return txn.Set(append(statePrefix(0), fmt.Sprintf("old%d", i)...), []byte("old"))
				}))
			}
			old := stateDump(t, l)
			stages := l.db.stages(batch)
			for _, do := range stages[:stage/2] {
				require.NoError(t, do())
			}
			if stage%2 == 1 { // half of the next one
				switch stage / 2 {
				case 0:
					require.NoError(t, l.db.writeJournal(batch[:1500]))
				case 2:
					require.NoError(t, l.db.inParts(batch[:1000]))
				case 3:
					require.NoError(t, l.db.tryOne([]write{{key: metaJournal}}))
				}
			}
			require.NoError(t, l.Close())
			l = openLocal(t, dir, testOptions())
			got := stateDump(t, l)
			if stage >= 4 { // the mark is stage 1 of 0..3
				require.Len(t, got, 3000)
				require.Equal(t, uint64(7), l.AppliedIndex())
			} else {
				require.Equal(t, old, got)
				require.Zero(t, l.AppliedIndex())
			}
			requireNoJournal(t, l)
		})
	}
}

// TestSnapshotRestore: a snapshot is the state when it was taken; restoring it
// replaces whatever was there and lists the bytes that are not here.
func TestSnapshotRestore(t *testing.T) {
	src := openLocal(t, t.TempDir(), testOptions())
	ctx := context.Background()
	apply(t, src, CreateRunCmd{epoch, testSpec})
	a, b := demoRecord("a", 10), demoRecord("b", 10)
	require.NoError(t, src.PutChunk(ctx, 1, []Record{a, b}))
	apply(t, src, AppendItemsCmd{epoch, items(a, b)})
	apply(t, src, TakeTicketsCmd{epoch, "r", "w", 2, "q"})
	snap := src.Snapshot()
	want := stateDump(t, src)
	apply(t, src, TakeTicketsCmd{epoch, "r", "w", 2, "q2"}) // after the snapshot
	var buf bytes.Buffer
	n, err := snap.WriteTo(&buf)
	require.NoError(t, err)
	require.Equal(t, int64(buf.Len()), n)
	require.Equal(t, uint64(3), snap.Applied)
	snap.Close()

	dir := t.TempDir()
	dst, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	apply(t, dst, CreateRunCmd{epoch, RunSpec{Run: "other", GroupSize: 1, GroupsPerStep: 1, TicketTTL: 1, MaxAttempts: 1}})
	other := demoRecord("z", 3)
	other.Item.Run = "other"
	apply(t, dst, AppendItemsCmd{epoch, items(other)}) // missing, then gone
	require.NoError(t, dst.PutChunk(ctx, 1, []Record{a}))
	before := stateDump(t, dst)

	for _, cut := range []int{0, 10, 20, 21, buf.Len() / 2, buf.Len() - 1} {
		require.ErrorIs(t, dst.Restore(bytes.NewReader(buf.Bytes()[:cut])), ErrBadSnapshot, "cut at %d", cut)
		require.Equal(t, before, stateDump(t, dst))
	}
	boom := errors.New("peer went away")
	require.ErrorIs(t, dst.Restore(io.MultiReader(bytes.NewReader(buf.Bytes()[:buf.Len()/2]), errReader{boom})), boom)
	require.Equal(t, before, stateDump(t, dst))

	require.NoError(t, dst.Restore(bytes.NewReader(buf.Bytes())))
	for range 2 {
		require.Equal(t, want, stateDump(t, dst))
		require.Equal(t, uint64(3), dst.AppliedIndex())
		missing, err := dst.MissingPayloads(10)
		require.NoError(t, err)
		require.Equal(t, items(b), missing)
		require.NoError(t, dst.Close())
		dst, err = OpenLocal(dir, testOptions())
		require.NoError(t, err)
	}
	// And it goes on like the source.
	got := apply(t, dst, TakeTicketsCmd{epoch, "r", "w", 2, "q2"})
	require.Len(t, got.Tickets, 2)
	require.Equal(t, stateDump(t, src), stateDump(t, dst))
	require.NoError(t, dst.Close())
}

// TestSnapshotChecksum: a stream that decompresses well but differs in one byte,
// or counts wrong, is refused.
func TestSnapshotChecksum(t *testing.T) {
	kv := NewMemKV()
	for _, k := range []string{"ra", "rb"} {
		require.NoError(t, kv.Set([]byte(k), []byte("value")))
	}
	var buf bytes.Buffer
	require.NoError(t, writeSnapshot(&buf, kv, 1))
	z, err := zstd.NewReader(bytes.NewReader(buf.Bytes()[20:]))
	require.NoError(t, err)
	defer z.Close()
	body, err := io.ReadAll(z)
	require.NoError(t, err)
	for at := -1; at < len(body); at++ {
		bad := bytes.Clone(body)
		if at >= 0 {
			bad[at] ^= 1
		}
		var out bytes.Buffer
		out.Write(buf.Bytes()[:20])
		w, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		_, err = w.Write(bad)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		_, err = readSnapshot(&out, func(_, _ []byte) error { return nil })
		if at < 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrBadSnapshot, "byte %d of %q", at, body)
		}
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// TestInterruptedRestore: a crash while a snapshot is being loaded leaves the
// old state, and no litter.
func TestInterruptedRestore(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLocal(dir, testOptions())
	require.NoError(t, err)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	want := stateDump(t, l)
	require.NoError(t, l.db.inParts([]write{{append(statePrefix(1), "rhalf"...), []byte("x")}}))
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	require.Equal(t, want, stateDump(t, l))
	txn := l.db.begin()
	defer txn.Discard()
	some, err := hasAny(txnReader{txn: txn}, statePrefix(1))
	require.NoError(t, err)
	require.False(t, some)
}

// TestCollectBlobs keeps what steps refer to.
func TestCollectBlobs(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	apply(t, l, CreateRunCmd{epoch, RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1}})
	adapter, err := l.PutBlob([]byte("adapter"))
	require.NoError(t, err)
	ckpt, err := l.PutBlob([]byte("checkpoint"))
	require.NoError(t, err)
	dead, err := l.PutBlob([]byte("abandoned"))
	require.NoError(t, err)
	g := apply(t, l, TakeTicketsCmd{epoch, "r", "w", 1, ""}).Tickets[0]
	it := Item{LogID: "x", Run: "r", Table: "train", Group: g.Group, GroupSize: 1, Status: uint8(eventlog.OK), Tokens: 1, Digest: "d"}
	apply(t, l, AppendItemsCmd{epoch, []Item{it}})
	lease := apply(t, l, AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Holder: "h", Groups: 1, TTL: time.Minute}}).Lease
	require.NoError(t, apply(t, l, CommitStepCmd{epoch, StepRecord{Run: "r", Step: 1, Version: 1, Lease: lease.ID, LogIDs: []string{"x"},
		Groups: []string{g.Group}, Checkpoint: ckpt, Adapter: adapter}}).Err)
	n, _, err := l.CollectBlobs(time.Now(), time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	n, _, err = l.CollectBlobs(time.Now().Add(2*time.Hour), time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.False(t, l.HasBlob(dead))
	missing, err := l.MissingBlobs()
	require.NoError(t, err)
	require.Empty(t, missing)
	require.NoError(t, l.blobs.Delete(adapter))
	missing, err = l.MissingBlobs()
	require.NoError(t, err)
	require.Equal(t, []string{adapter}, missing)
	_, _, err = l.CollectBlobs(time.Now(), 0)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestCollectExpiredCheckpoints: a checkpoint its run no longer keeps goes
// without grace, and is not repaired.
func TestCollectExpiredCheckpoints(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	apply(t, l, CreateRunCmd{epoch, RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1, KeepCheckpoints: 1}})
	put := func(s string) string {
		d, err := l.PutBlob([]byte(s))
		require.NoError(t, err)
		return d
	}
	digests := []string{put("c0")}
	for n := uint64(1); n <= 3; n++ {
		g := apply(t, l, TakeTicketsCmd{epoch, "r", "w", 1, ""}).Tickets[0]
		id := fmt.Sprint("x", n)
		apply(t, l, AppendItemsCmd{epoch, []Item{{LogID: id, Run: "r", Table: "train", Group: g.Group, GroupSize: 1, Status: uint8(eventlog.OK), Tokens: 1,
			MinVersion: n - 1, MaxVersion: n - 1, Digest: "d"}}})
		lease := apply(t, l, AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Holder: "h", Groups: 1, LearnerVersion: n - 1, TTL: time.Minute}}).Lease
		digests = append(digests, put(fmt.Sprint("c", n)))
		require.NoError(t, apply(t, l, CommitStepCmd{epoch, StepRecord{Run: "r", Step: n, Version: n, Lease: lease.ID, LogIDs: []string{id},
			PrevCheckpoint: digests[n-1], Checkpoint: digests[n], Adapter: put(fmt.Sprint("a", n))}}).Err)
	}
	dead := put("a learner's that died before its commit")
	n, _, err := l.CollectBlobs(time.Now().Add(time.Second), time.Hour)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	for i, d := range digests {
		require.Equal(t, i >= 2, l.HasBlob(d), "c%d", i)
	}
	require.True(t, l.HasBlob(dead))
	missing, err := l.MissingBlobs()
	require.NoError(t, err)
	require.Empty(t, missing)
}

func TestLocalOptionsValidate(t *testing.T) {
	require.NoError(t, DefaultLocalOptions().Validate())
	_, err := OpenLocal(t.TempDir(), LocalOptions{GCInterval: -1})
	require.ErrorIs(t, err, ErrInvalid)
	for _, field := range []string{"SegmentBytes = 0", "MemTableBytes = 0", "GCInterval = -1ns"} {
		require.ErrorContains(t, err, field)
	}
}

// TestConcurrentUse mixes every call; the race detector watches.
func TestConcurrentUse(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	ctx := context.Background()
	apply(t, l, CreateRunCmd{epoch, testSpec})
	var wg sync.WaitGroup
	var mu sync.Mutex // stands in for raft: one order of entries
	for w := range 8 {
		wg.Go(func() {
			for i := range 30 {
				r := demoRecord(fmt.Sprintf("%d-%d", w, i), 300)
				if err := l.PutChunk(ctx, 1, []Record{r}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				b, err := EncodeCommand(AppendItemsCmd{epoch, items(r)})
				if err == nil {
					_, err = l.ApplyBatch([]Entry{{l.AppliedIndex() + 1, b}})
				}
				mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				recs, missing, err := l.ReadRecords(ids(r))
				if err != nil || len(missing) > 0 || !bytes.Equal(recs[0].Bytes, r.Bytes) {
					t.Errorf("%s: %v, missing %v", r.Item.LogID, err, missing)
					return
				}
				if i%10 == 0 {
					s := l.Snapshot()
					_, err := s.WriteTo(io.Discard)
					s.Close()
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	missing, err := l.MissingPayloads(1)
	require.NoError(t, err)
	require.Empty(t, missing)
}
