package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/backup"
	"github.com/skein-rl/skein/replay/blob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type store struct {
	replay.Store
	replay.Operator
}

func config(dir string) cluster.Config {
	cfg := cluster.DefaultConfig(dir)
	cfg.Heartbeat = 0
	cfg.Store.MinFreeBytes, cfg.Store.GCInterval = 0, 0
	return cfg
}

func open(t *testing.T, dir string) store {
	t.Helper()
	n, err := cluster.OpenLocal(config(dir))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return store{n.Store(), n.Operator()}
}

func record(id string) replay.Record {
	b := bytes.Repeat([]byte("contents of "+id+"; "), 40)
	return replay.Record{Bytes: b, Item: replay.Item{LogID: id, Run: "r", Table: "audit", Group: id, GroupSize: 1, Status: uint8(eventlog.OK), Tokens: 1,
		Digest: blob.Digest(b), Size: uint32(len(b)), Created: time.Unix(1, 0).UTC()}}
}

// add appends logs and, with the first, a run whose start adapter is a blob.
func add(t *testing.T, st store, ids ...string) {
	t.Helper()
	ctx := t.Context()
	runs, err := st.Runs(ctx)
	require.NoError(t, err)
	if len(runs) == 0 {
		d, err := st.PutBlob(ctx, []byte("adapter"))
		require.NoError(t, err)
		require.NoError(t, st.CreateRun(ctx, replay.RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1, StartAdapter: d}))
	}
	var recs []replay.Record
	for _, id := range ids {
		recs = append(recs, record(id))
	}
	_, err = st.Append(ctx, recs)
	require.NoError(t, err)
}

// names lists the logs of a store, all of which must be readable.
func names(t *testing.T, st store) string {
	t.Helper()
	items, err := st.Tail(t.Context(), replay.TailRequest{Run: "r"})
	require.NoError(t, err)
	var ids []string
	for _, x := range items {
		ids = append(ids, x.Item.LogID)
	}
	recs, err := st.Fetch(t.Context(), ids)
	require.NoError(t, err)
	for _, r := range recs {
		require.Equal(t, record(r.Item.LogID), r)
	}
	return strings.Join(ids, " ")
}

func restore(t *testing.T, target backup.Target, name string) store {
	t.Helper()
	m, err := backup.Get(t.Context(), target, name)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "new")
	_, err = cluster.Restore(t.Context(), config(dir), true, backup.Open(t.Context(), target, m))
	require.NoError(t, err)
	return open(t, dir)
}

// objects counts a target's objects by folder.
func objects(t *testing.T, target backup.Target) map[string]int {
	t.Helper()
	n := map[string]int{}
	require.NoError(t, target.List(t.Context(), "", func(o backup.Object) error {
		folder, _, _ := strings.Cut(o.Key, "/")
		if strings.HasSuffix(o.Key, ".idx") {
			folder = "idx"
		}
		n[folder]++
		return nil
	}))
	return n
}

// TestBackups, on a folder and on a server that speaks S3: incremental, restored
// by name, pruned.
func TestBackups(t *testing.T) {
	for name, where := range map[string]func(*testing.T) string{
		"folder": func(t *testing.T) string { return t.TempDir() },
		"s3":     func(t *testing.T) string { return newS3(t).where() },
	} {
		t.Run(name, func(t *testing.T) {
			target, err := backup.OpenTarget(where(t))
			require.NoError(t, err)
			st := open(t, t.TempDir())
			add(t, st, "a", "b")
			steps := 0
			first, err := backup.Create(t.Context(), st, target, backup.Options{Name: "first", Progress: func(done, all int) { steps = done }})
			require.NoError(t, err)
			require.Equal(t, 3, steps)
			require.Equal(t, []int{2, 2, 1, 1}, []int{first.Logs, first.NewLogs, first.NewBlobs, len(first.Packs)})
			_, err = backup.Create(t.Context(), st, target, backup.Options{Name: "first"})
			require.ErrorContains(t, err, "choose another name")

			add(t, st, "c")
			_, err = st.DeleteLogs(t.Context(), "r", []string{"a"}, "asked")
			require.NoError(t, err)
			second, err := backup.Create(t.Context(), st, target, backup.Options{Name: "second"})
			require.NoError(t, err)
			require.Equal(t, []int{2, 1, 0, 2}, []int{second.Logs, second.NewLogs, second.NewBlobs, len(second.Packs)}, "only what is new is copied")
			require.Greater(t, second.Index, first.Index)
			all, err := backup.List(t.Context(), target)
			require.NoError(t, err)
			require.Len(t, all, 2)
			require.NoError(t, backup.Check(t.Context(), target, first))
			require.Equal(t, map[string]int{"backups": 2, "packs": 2, "idx": 2, "states": 2, "blobs": 1, "skein-backup.json": 1}, objects(t, target))

			require.Equal(t, "a b", names(t, restore(t, target, "first")))
			again := restore(t, target, "")
			require.Equal(t, "b c", names(t, again))
			add(t, again, "d") // it is a store like any
			require.Equal(t, "b c d", names(t, again))

			// The deleted log is gone from the target once no backup has it.
			rep, err := backup.Prune(t.Context(), target, backup.PruneOptions{Keep: 1, Purge: true, Grace: time.Hour, Now: time.Now().Add(2 * time.Hour)})
			require.NoError(t, err)
			require.Equal(t, []string{"first"}, rep.Backups)
			require.Equal(t, 1, rep.Packs)
			require.Equal(t, map[string]int{"backups": 1, "packs": 2, "idx": 2, "states": 1, "blobs": 1, "skein-backup.json": 1}, objects(t, target))
			require.Equal(t, "b c", names(t, restore(t, target, "second")))
			_, err = backup.Get(t.Context(), target, "first")
			require.ErrorIs(t, err, backup.ErrNotFound)
			third, err := backup.Create(t.Context(), st, target, backup.Options{})
			require.NoError(t, err)
			require.Zero(t, third.NewLogs, "packs that were rewritten still count")
		})
	}
}

// failing fails its k-th call.
type failing struct {
	backup.Target
	left int
}

var errCut = errors.New("power cut")

func (f *failing) Put(ctx context.Context, key string, data []byte) error {
	if f.left--; f.left < 0 {
		return errCut
	}
	return f.Target.Put(ctx, key, data)
}

func (f *failing) Delete(ctx context.Context, key string) error {
	if f.left--; f.left < 0 {
		return errCut
	}
	return f.Target.Delete(ctx, key)
}

// TestInterruptedAnywhere: a backup and a prune that end after any write leave
// every finished backup whole, and the next try finishes.
func TestInterruptedAnywhere(t *testing.T) {
	st := open(t, t.TempDir())
	add(t, st, "a", "b")
	for k := range 40 {
		target, err := backup.OpenTarget(t.TempDir())
		require.NoError(t, err)
		_, err = backup.Create(t.Context(), st, target, backup.Options{Name: "old"})
		require.NoError(t, err)
		add(t, st, fmt.Sprint("n", k))
		_, err = st.DeleteLogs(t.Context(), "r", []string{[]string{"a", fmt.Sprint("n", k-1)}[min(k, 1)]}, "asked")
		require.NoError(t, err)
		cut := &failing{target, k}
		_, err = backup.Create(t.Context(), st, cut, backup.Options{Name: "new"})
		if err == nil {
			_, err = backup.Prune(t.Context(), cut, backup.PruneOptions{Names: []string{"old"}, Purge: true, Now: time.Now().Add(100 * time.Hour)})
		}
		all, lerr := backup.List(t.Context(), target)
		require.NoError(t, lerr)
		for _, m := range all {
			require.NoError(t, backup.Check(t.Context(), target, m), "cut after %d writes", k)
		}
		if err == nil {
			require.Len(t, all, 1)
			require.Greater(t, k, 8)
			return
		}
		require.ErrorIs(t, err, errCut)
		_, err = backup.Create(t.Context(), st, target, backup.Options{Name: "next"})
		require.NoError(t, err)
	}
	t.Fatal("it never ended well")
}

// TestDamageIsFound in every kind of object.
func TestDamageIsFound(t *testing.T) {
	st := open(t, t.TempDir())
	add(t, st, "a", "b")
	for _, kind := range []string{"states", "packs", "blobs"} {
		dir := t.TempDir()
		target, err := backup.OpenTarget("file://" + dir)
		require.NoError(t, err)
		m, err := backup.Create(t.Context(), st, target, backup.Options{})
		require.NoError(t, err)
		files, err := filepath.Glob(filepath.Join(dir, kind, "*"))
		require.NoError(t, err)
		for _, f := range files {
			if strings.HasSuffix(f, ".idx") {
				continue
			}
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			b[len(b)/2] ^= 4
			require.NoError(t, os.WriteFile(f, b, 0o600))
		}
		require.ErrorContains(t, backup.Check(t.Context(), target, m), "is damaged", kind)
		_, err = cluster.Restore(t.Context(), config(filepath.Join(t.TempDir(), "x")), true, backup.Open(t.Context(), target, m))
		require.ErrorContains(t, err, "is damaged", kind)
	}
}

// vanishing loses a log between the snapshot and the copy, once.
type vanishing struct {
	store
	t    *testing.T
	once bool
}

func (v *vanishing) ReadExact(ctx context.Context, logs []replay.Exact) ([]replay.Record, error) {
	if !v.once {
		v.once = true
		_, err := v.DeleteLogs(ctx, "r", []string{"b"}, "asked")
		require.NoError(v.t, err)
		_, err = v.Compact(ctx, replay.CompactRequest{})
		require.NoError(v.t, err)
	}
	return v.store.ReadExact(ctx, logs)
}

// TestDeletedMeanwhile: the backup is of a state without the log.
func TestDeletedMeanwhile(t *testing.T) {
	st := open(t, t.TempDir())
	add(t, st, "a", "b", "c")
	target, err := backup.OpenTarget(t.TempDir())
	require.NoError(t, err)
	m, err := backup.Create(t.Context(), &vanishing{store: st, t: t}, target, backup.Options{})
	require.NoError(t, err)
	require.Equal(t, 2, m.Logs)
	require.NoError(t, backup.Check(t.Context(), target, m))
	require.Equal(t, "a c", names(t, restore(t, target, "")))
}

func TestTargetsThatCannotBe(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	for where, want := range map[string]string{
		"":                            "name a folder",
		"ftp://x":                     "is not known",
		"file://host/x":               "three slashes",
		"s3://":                       "names no bucket",
		"s3://b/x?endpont=y":          "endpont is not known",
		"s3://id:secret@b":            "keys do not belong",
		"s3://b?insecure=perhaps":     "use true or false",
		"s3://b/x?endpoint=127.0.0.1": "there are no keys",
	} {
		_, err := backup.OpenTarget(where)
		require.ErrorContains(t, err, want, where)
		require.NotContains(t, fmt.Sprint(err), "secret@")
	}
	st := open(t, t.TempDir())
	target, err := backup.OpenTarget(t.TempDir())
	require.NoError(t, err)
	_, err = backup.Create(t.Context(), st, target, backup.Options{Name: "../x"})
	require.ErrorContains(t, err, "use up to 100 letters")
	require.Error(t, target.Put(t.Context(), "../x", nil))
	_, err = backup.Prune(t.Context(), target, backup.PruneOptions{})
	require.ErrorContains(t, err, "say how many")
	require.NoError(t, target.Put(t.Context(), "skein-backup.json", []byte(`{"format": 9}`)))
	_, err = backup.Create(t.Context(), st, target, backup.Options{})
	require.ErrorContains(t, err, "format 9")
}

// TestWrongKeys: a server that refuses is an error, not an empty target.
func TestWrongKeys(t *testing.T) {
	s := newS3(t)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	target, err := backup.OpenTarget(s.where())
	require.NoError(t, err)
	_, err = backup.List(t.Context(), target)
	require.ErrorContains(t, err, "SignatureDoesNotMatch")
	_, err = backup.Create(t.Context(), open(t, t.TempDir()), target, backup.Options{})
	require.ErrorContains(t, err, "SignatureDoesNotMatch")
	u, err := url.Parse(s.where())
	require.NoError(t, err)
	require.NotContains(t, target.String(), u.RawQuery)
}
