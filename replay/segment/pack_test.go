package segment

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// group is n records with a prompt in common that does not compress by itself.
func group(t testing.TB, name string, n int) Group {
	t.Helper()
	prompt := make([]byte, 4000)
	_, err := rand.Read(prompt)
	require.NoError(t, err)
	var g Group
	for i := range n {
		b := append(bytes.Clone(prompt), lines(10+i)...)
		g = append(g, Record{ID: fmt.Sprintf("%s-%d", name, i), Digest: "d", Bytes: b, Size: len(b)})
	}
	return g
}

func readBack(t testing.TB, l *Log, g Group) {
	t.Helper()
	want := map[string]Record{}
	for _, r := range g {
		want[r.ID] = r
	}
	_, err := l.Scan(context.Background(), Position{}, func(e Entry) error {
		r, ok := want[e.ID]
		if !ok {
			return nil
		}
		delete(want, e.ID)
		got, err := l.Read(e.Pos)
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.Equal(t, len(r.Bytes), e.Size)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, want)
}

// TestPacks: what a group shares is stored once; every member reads back alone,
// across a reopening, and is listed by a scan as any record.
func TestPacks(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	a, b, one := group(t, "a", 8), group(t, "b", 3), group(t, "one", 1)
	before := l.Stats().Bytes
	n, err := l.AppendGroups(context.Background(), []Group{a, one, b})
	require.NoError(t, err)
	require.Equal(t, int(l.Stats().Bytes-before), n)
	require.Less(t, n, 3*5500, "12 logs, three prompts of 4000 bytes")
	for _, g := range []Group{a, b, one} {
		readBack(t, l, g)
	}
	require.NoError(t, l.Close())
	l = open(t, dir, Options{})
	require.Zero(t, l.Stats().TornBytes)
	ids, gaps := scanIDs(t, l, Position{})
	require.Empty(t, gaps)
	require.Len(t, ids, 12)
	readBack(t, l, a)
	together, alone, err := Packed(a)
	require.NoError(t, err)
	require.Less(t, 4*together, alone)
	require.Error(t, func() error { _, err := l.Read(Position{1, fileHeader}); return err }(), "a pack is no record")
}

// TestDamagedPack: with its pack a member is lost, and said to be; the others of
// the file are not.
func TestDamagedPack(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	a, b := group(t, "a", 2), group(t, "b", 2)
	_, err = l.AppendGroups(context.Background(), []Group{a, b})
	require.NoError(t, err)
	es := appendAll(t, l, rec(1, 10))
	require.NoError(t, l.Close())
	file := filepath.Join(dir, "0000000000000001.seg")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	raw[fileHeader+recordHeader+100] ^= 1 // in the first pack
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	l = open(t, dir, Options{})
	ids, gaps := scanIDs(t, l, Position{})
	require.Equal(t, []string{"b-0", "b-1", "log-1"}, ids)
	require.NotEmpty(t, gaps)
	lost := int64(0)
	for _, g := range gaps {
		lost += g.Bytes
	}
	// The pack and its two members, to the byte.
	bPack := bytes.LastIndex(raw[:es[0].Pos.Offset], []byte(packID))
	require.Equal(t, int64(bPack-recordHeader-fileHeader), lost)
	readBack(t, l, b)
}

// TestPackWithoutMembers: a crash after the pack and before its members leaves
// nothing behind.
func TestPackWithoutMembers(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Options{})
	require.NoError(t, err)
	es := appendAll(t, l, rec(1, 10))
	_, err = l.AppendGroups(context.Background(), []Group{group(t, "a", 3)})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	file := filepath.Join(dir, "0000000000000001.seg")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	pack := bytes.Index(raw, []byte(packID)) - recordHeader
	member := bytes.Index(raw, []byte("a-0")) - recordHeader
	for cut, end := range map[int]int{member: member, member + 10: member, pack + 30: pack} {
		require.NoError(t, os.WriteFile(file, raw[:cut], 0o600))
		l, err = Open(dir, Options{})
		require.NoError(t, err)
		require.Equal(t, int64(cut-end), l.Stats().TornBytes)
		ids, gaps := scanIDs(t, l, Position{})
		require.Equal(t, []string{"log-1"}, ids)
		require.Empty(t, gaps)
		require.Equal(t, int64(end), appendAll(t, l, rec(2, 10))[0].Pos.Offset)
		require.NoError(t, l.Close())
	}
	require.Equal(t, int64(fileHeader), es[0].Pos.Offset)
}

// TestVersion1: a file of the version without packs is read, and not written.
func TestVersion1(t *testing.T) {
	dir := t.TempDir()
	b := encodeFileHeader(1)
	binary.LittleEndian.PutUint32(b[8:], 1)
	binary.LittleEndian.PutUint32(b[20:], crc32.Checksum(b[:20], castagnoli))
	b = encoded(t, encoded(t, b, rec(1, 700), true), rec(2, 10), false)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "0000000000000001.seg"), b, 0o600))
	l := open(t, dir, Options{})
	readBack(t, l, Group{rec(1, 700), rec(2, 10)})
	require.Equal(t, uint64(2), appendAll(t, l, rec(3, 10))[0].Pos.Segment)
	raw, err := os.ReadFile(filepath.Join(dir, "0000000000000001.seg"))
	require.NoError(t, err)
	require.Equal(t, b, raw)
}

// TestPackedHistory: any groups, in any order of appends and openings, read back.
func TestPackedHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		require.NoError(t, err)
		l, err := Open(dir, Options{MaxBytes: 1 << 15})
		require.NoError(t, err)
		var all Group
		for i := range rapid.IntRange(1, 6).Draw(rt, "appends") {
			var gs []Group
			for k := range rapid.IntRange(1, 3).Draw(rt, "groups") {
				g := group(t, fmt.Sprintf("g%d.%d", i, k), rapid.IntRange(0, 4).Draw(rt, "members"))
				for j := range g {
					if rapid.Bool().Draw(rt, "compressed") {
						if z := Compress(g[j].Bytes); z != nil {
							all = append(all, g[j])
							g[j].Zstd, g[j].Bytes = z, nil
							continue
						}
					}
					all = append(all, g[j])
				}
				gs = append(gs, g)
			}
			_, err := l.AppendGroups(context.Background(), gs)
			require.NoError(t, err)
			if rapid.Bool().Draw(rt, "reopen") {
				require.NoError(t, l.Close())
				l, err = Open(dir, Options{MaxBytes: 1 << 15})
				require.NoError(t, err)
			}
		}
		readBack(t, l, all)
		require.NoError(t, l.Close())
	})
}
