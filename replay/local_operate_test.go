package replay

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// audit stores and commits noise under ids.
func audit(t *testing.T, l *Local, ids ...string) []Record {
	t.Helper()
	var recs []Record
	for _, id := range ids {
		recs = append(recs, noise(id, "audit"))
	}
	require.NoError(t, l.PutChunk(t.Context(), 1, recs))
	for _, r := range apply(t, l, AppendItemsCmd{epoch, items(recs...)}).Append {
		require.Equal(t, AppendResult{Closed: r.Closed}, r)
	}
	return recs
}

// TestPurge: deleted and redacted bytes are gone from the disk after a
// compaction on demand, whatever the files' age, and no late copy brings them
// back; everything else is as it was.
func TestPurge(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("log%02d", i))
	}
	recs := audit(t, l, names...)
	waiting := noise("waiting", "audit") // durable, its commit on the way
	require.NoError(t, l.PutChunk(t.Context(), 1, []Record{waiting}))

	require.Equal(t, 2, apply(t, l, DeleteLogsCmd{epoch, "r", []string{"log03", "log11"}, "asked"}).Updated)
	twin := Record{Item: recs[5].Item, Bytes: bytes.Repeat([]byte("-"), 99)}
	twin.Item.Digest, twin.Item.Size = "d:twin", 99
	require.NoError(t, l.PutChunk(t.Context(), 1, []Record{twin}))
	require.Equal(t, 1, apply(t, l, RedactLogsCmd{epoch, "r", []Redaction{{"log05", recs[5].Item.Digest, "d:twin", 99}}, "asked"}).Updated)
	gone := []Record{recs[3], recs[5], recs[11]}
	for _, r := range gone {
		require.True(t, onDisk(t, dir, r.Bytes[:1000]), "the test would show nothing")
	}

	rep, err := l.Purge(t.Context(), time.Now(), time.Hour, 0.9)
	require.NoError(t, err)
	require.Zero(t, rep.Held)
	require.Equal(t, 3, rep.Dropped)
	kept := append(append(append([]Record{}, recs[:3]...), recs[4], twin), recs[6:11]...)
	check := func() {
		requireRecords(t, l, kept)
		for _, r := range gone {
			require.False(t, onDisk(t, dir, r.Bytes[:1000]), "%s is on the disk", r.Item.LogID)
		}
		have, err := l.Has([]Item{waiting.Item})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, have, "what waits for its commit stays")
	}
	check()
	// A producer that comes back late is told that it is there, and nothing is stored.
	require.NoError(t, l.PutChunk(t.Context(), 1, gone))
	check()
	require.NoError(t, l.Close())
	l = openLocal(t, dir, testOptions())
	check()
	rep, err = l.Purge(t.Context(), time.Now(), time.Hour, 0)
	require.NoError(t, err)
	require.Zero(t, rep.Dropped, "again changes nothing")
	require.Equal(t, []AppendResult{{}}, apply(t, l, AppendItemsCmd{epoch, items(waiting)}).Append)
	requireRecords(t, l, []Record{waiting})
}

// TestPurgeLeavesDamageInUse: a damaged file with a log in use is left for
// repair, and said so; once that is repaired the file goes.
func TestPurgeLeavesDamageInUse(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	recs := audit(t, l, "good", "hurt", "gone")
	require.NoError(t, l.seg.Seal(t.Context()))
	damage(t, dir, recs[1].Bytes[500:600])
	require.Equal(t, 1, apply(t, l, DeleteLogsCmd{epoch, "r", []string{"gone"}, "asked"}).Updated)
	rep, err := l.Purge(t.Context(), time.Now(), time.Hour, 0)
	require.NoError(t, err)
	require.Equal(t, CompactReport{Held: 1, Damaged: 1}, rep)

	v, err := l.VerifyAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, v.Logs)
	require.Equal(t, 1, v.Missing)
	require.Equal(t, []string{"hurt"}, v.Bad)
	require.Equal(t, 1, v.Gaps)
	require.NoError(t, l.PutChunk(t.Context(), 1, recs[1:2])) // as from a peer
	rep, err = l.Purge(t.Context(), time.Now(), time.Hour, 0)
	require.NoError(t, err)
	require.Zero(t, rep.Damaged+rep.Held)
	require.False(t, onDisk(t, dir, recs[2].Bytes[:1000]))
	requireRecords(t, l, recs[:2])
	v, err = l.VerifyAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, VerifyReport{Records: 2, Bytes: 200_000, Logs: 2}, v)
}

// damage overwrites where bytes are in a segment file.
func damage(t *testing.T, dir string, where []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*.seg"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		if i := bytes.Index(b, where); i >= 0 {
			copy(b[i:], "DAMAGED")
			require.NoError(t, os.WriteFile(f, b, 0o600))
			return
		}
	}
	t.Fatal("nothing to damage")
}

// TestVerifyChecksContents: bytes that are whole but not what the item says.
func TestVerifyChecksContents(t *testing.T) {
	opts := testOptions()
	opts.Verify = func(it Item, b []byte) error {
		if it.LogID == "liar" {
			return fmt.Errorf("not the digest")
		}
		return nil
	}
	l := openLocal(t, t.TempDir(), opts)
	apply(t, l, CreateRunCmd{epoch, testSpec})
	audit(t, l, "honest", "liar")
	rep, err := l.VerifyAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"liar"}, rep.Bad)
	missing, err := l.MissingPayloads(5)
	require.NoError(t, err)
	require.Equal(t, "liar", missing[0].LogID, "repair gets it from another replica")
}

// TestRebuildIndex: a lost or broken index is made anew from the segments, and
// the commands applied again lead to the same.
func TestRebuildIndex(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	var entries []Entry
	do := func(c Command) {
		e := cmd(t, uint64(len(entries)+1), c)
		entries = append(entries, e)
		_, err := l.ApplyBatch([]Entry{e})
		require.NoError(t, err)
	}
	do(CreateRunCmd{epoch, testSpec})
	recs := []Record{noise("a1", "audit"), noise("b2", "audit"), noise("c3", "audit")}
	require.NoError(t, l.PutChunk(t.Context(), 1, recs))
	do(AppendItemsCmd{epoch, items(recs...)})
	want := stateDump(t, l)
	require.NoError(t, l.Close())

	manifest := filepath.Join(dir, "index", "MANIFEST")
	require.NoError(t, os.WriteFile(manifest, []byte("nonsense"), 0o600))
	_, err := OpenLocal(dir, testOptions())
	require.Error(t, err)
	rep, err := RebuildIndex(dir, testOptions())
	require.NoError(t, err)
	require.Equal(t, 3, rep.Records)
	require.DirExists(t, rep.Aside)
	l = openLocal(t, dir, testOptions())
	require.Zero(t, l.AppliedIndex())
	_, err = l.ApplyBatch(entries)
	require.NoError(t, err)
	require.Equal(t, want, stateDump(t, l))
	requireRecords(t, l, recs)
	missing, err := l.MissingPayloads(5)
	require.NoError(t, err)
	require.Empty(t, missing)
	require.NoError(t, l.Close())

	// No index at all is the same case.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "index")))
	rep, err = RebuildIndex(dir, testOptions())
	require.NoError(t, err)
	require.Equal(t, RebuildReport{Records: 3}, rep)
}

// TestStateDigest: equal on what applied the same, and another after any change.
func TestStateDigest(t *testing.T) {
	digest := func(l *Local) string {
		s := l.Snapshot()
		defer s.Close()
		d, _, err := s.Digest()
		require.NoError(t, err)
		return d
	}
	a, b := openLocal(t, t.TempDir(), testOptions()), openLocal(t, t.TempDir(), testOptions())
	for _, l := range []*Local{a, b} {
		apply(t, l, CreateRunCmd{epoch, testSpec})
	}
	require.Equal(t, digest(a), digest(b))
	apply(t, a, FinishRunCmd{epoch, "r"})
	require.NotEqual(t, digest(a), digest(b))
	var snap bytes.Buffer
	s := a.Snapshot()
	_, err := s.WriteTo(&snap)
	s.Close()
	require.NoError(t, err)
	require.NoError(t, b.Restore(&snap))
	require.Equal(t, digest(a), digest(b))
}

// TestSnapshotContents lists what belongs to a snapshot, without what was
// deleted.
func TestSnapshotContents(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	spec := testSpec
	spec.StartAdapter = "blake3:aa"
	apply(t, l, CreateRunCmd{epoch, spec})
	recs := audit(t, l, "a1", "b2")
	apply(t, l, DeleteLogsCmd{epoch, "r", []string{"a1"}, "asked"})
	var b bytes.Buffer
	s := l.Snapshot()
	_, err := s.WriteTo(&b)
	s.Close()
	require.NoError(t, err)
	var logs []Exact
	applied, blobs, err := SnapshotContents(bytes.NewReader(b.Bytes()), func(x Exact, size uint32) error {
		require.EqualValues(t, 100_000, size)
		logs = append(logs, x)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, l.AppliedIndex(), applied)
	require.Equal(t, []string{"blake3:aa"}, blobs)
	require.Equal(t, []Exact{{"b2", recs[1].Item.Digest}}, logs)
	_, _, err = SnapshotContents(bytes.NewReader(b.Bytes()[:b.Len()-3]), func(Exact, uint32) error { return nil })
	require.ErrorIs(t, err, ErrBadSnapshot)
}

// TestPurgeOfDamagedDeletedBytes: damage to what is deleted holds nothing up.
func TestPurgeOfDamagedDeletedBytes(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, testOptions())
	apply(t, l, CreateRunCmd{epoch, testSpec})
	recs := audit(t, l, "good", "gone")
	require.NoError(t, l.seg.Seal(t.Context()))
	damage(t, dir, recs[1].Bytes[50_000:50_100])
	require.Equal(t, 1, apply(t, l, DeleteLogsCmd{epoch, "r", []string{"gone"}, "asked"}).Updated)
	rep, err := l.Purge(t.Context(), time.Now(), time.Hour, 0.9)
	require.NoError(t, err)
	require.Zero(t, rep.Damaged+rep.Held)
	require.False(t, onDisk(t, dir, recs[1].Bytes[:1000]))
	requireRecords(t, l, recs[:1])
	have, err := l.Has(items(recs[1]))
	require.NoError(t, err)
	require.Equal(t, []bool{false}, have)
}
