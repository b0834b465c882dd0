package cluster

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// unpack writes the files of a recorded folder to dir.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		p := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.FileInfo().IsDir() {
			require.NoError(t, os.MkdirAll(p, 0o700))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o700))
		out, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = io.Copy(out, r)
		require.NoError(t, errors.Join(err, out.Close()))
	}
}

// The folder of a node that an earlier build wrote, and that ended without
// being closed, opens with everything in it and goes on. Each archive in
// testdata/upgrade is of one build; facts.json has the digests of its logs.
// They are never rewritten. v1 was written by the build of ecc4467: six steps,
// two tables, a snapshot and a log behind it, a ticket, a lease and an
// evaluation under way.
func TestOpensFoldersOfEarlierBuilds(t *testing.T) {
	archives, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	require.NoError(t, err)
	require.NotEmpty(t, archives)
	for _, a := range archives {
		t.Run(filepath.Base(a), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "node")
			unpack(t, a, dir)
			raw, err := os.ReadFile(filepath.Join(dir, "facts.json"))
			require.NoError(t, err)
			facts := map[string]string{}
			require.NoError(t, json.Unmarshal(raw, &facts))
			require.Greater(t, len(facts), 20)
			for range 2 { // what this build wrote opens too
				checkFolder(t, dir, facts)
			}
		})
	}
}

func checkFolder(t *testing.T, dir string, facts map[string]string) {
	cfg := testConfig(t, dir)
	n, err := OpenLocal(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	ctx, s := testCtx(t), n.Store()
	var ids []string
	for id := range facts {
		ids = append(ids, id)
	}
	recs, err := s.Fetch(ctx, ids)
	require.NoError(t, err)
	for _, r := range recs {
		require.Equal(t, facts[r.Item.LogID], r.Item.Digest)
		require.Equal(t, facts[r.Item.LogID], blob.Digest(r.Bytes), r.Item.LogID)
	}
	missing, err := n.store.MissingPayloads(10)
	require.NoError(t, err)
	require.Empty(t, missing)

	st, err := s.Status(ctx, "r")
	require.NoError(t, err)
	first := st.Latest.Version == 6
	require.GreaterOrEqual(t, st.Appended, len(facts))
	prev := ""
	for v := uint64(1); v <= 6; v++ {
		step, err := s.Step(ctx, "r", v)
		require.NoError(t, err)
		require.Equal(t, prev, step.PrevCheckpoint)
		prev = step.Checkpoint
		_, err = s.GetBlob(ctx, step.Checkpoint)
		require.NoError(t, err)
		_, err = s.GetBlob(ctx, step.Adapter)
		require.NoError(t, err)
	}
	tables, err := s.Tables(ctx, "r")
	require.NoError(t, err)
	require.Len(t, tables, 2)
	require.Equal(t, "buf", tables[1].Table)
	ev, err := s.EvalStatus(ctx, "r", 6)
	require.NoError(t, err)
	require.Equal(t, 4, ev.Requested)
	if !first {
		return
	}
	require.EqualValues(t, 2, tables[1].Leased, "the lease that was out is out")

	// It goes on: the lease is taken over, and a step committed.
	l, err := s.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "buf", Holder: "h2", Groups: 2, LearnerVersion: 6, TTL: time.Minute, Wait: time.Second})
	require.NoError(t, err)
	step := replay.StepRecord{Run: "r", Step: 7, Version: 7, Lease: l.ID, PrevCheckpoint: prev}
	step.Checkpoint, err = s.PutBlob(ctx, []byte("checkpoint 7"))
	require.NoError(t, err)
	step.Adapter = step.Checkpoint
	require.NoError(t, s.Commit(ctx, step))
	_, err = s.Append(ctx, []replay.Record{testRecord("r", "new", 500)})
	require.NoError(t, err)
}
