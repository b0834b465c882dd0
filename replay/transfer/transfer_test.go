package transfer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
	"github.com/skein-rl/skein/replay/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a store in this process.
type store struct {
	replay.Store
	replay.Operator
}

func newStore(t *testing.T) store {
	t.Helper()
	cfg := cluster.DefaultConfig(t.TempDir())
	cfg.Heartbeat = 0
	cfg.Store.MinFreeBytes, cfg.Store.GCInterval = 0, 0
	cfg.Store.Verify = func(it replay.Item, b []byte) error {
		l, err := eventlog.Decode(b)
		if err == nil && l.Digest() != it.Digest {
			err = errors.New("another digest")
		}
		return err
	}
	n, err := cluster.OpenLocal(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return store{n.Store(), n.Operator()}
}

var spec = replay.RunSpec{Run: "r", Config: []byte("x: 1\n"), GroupSize: 2, GroupsPerStep: 1, MaxStaleness: 3, TicketTTL: time.Minute, MaxAttempts: 3, BaseDigest: "blake3:00"}

// record makes a log with tokens; change edits its item's fields first.
func record(t *testing.T, id, tab string, change func(*eventlog.Meta), texts ...string) replay.Record {
	t.Helper()
	meta := eventlog.Meta{Run: "r", Table: tab, Group: id, GroupSize: 1, Source: "src", Task: "task-" + id, Worker: "w", Attempt: 1, Created: time.Unix(100, 7).UTC()}
	if change != nil {
		change(&meta)
	}
	b := eventlog.NewBuilder(meta)
	b.SetID(id)
	_, err := b.AppendTokens(0, []int32{1, 2}, nil, eventlog.Prompt, 0)
	require.NoError(t, err)
	span, err := b.AppendTokens(0, []int32{3}, []float32{-0.5}, eventlog.Policy, 0)
	require.NoError(t, err)
	for i, text := range texts {
		author := "human:ann"
		if i%2 == 1 {
			author = "human:bob"
		}
		_, err = b.Append(eventlog.NewObservation(author, text))
		require.NoError(t, err)
	}
	_, err = b.Append(eventlog.NewText("answer").In(0, span))
	require.NoError(t, err)
	l, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)
	data, err := eventlog.Encode(l)
	require.NoError(t, err)
	m := l.Meta
	return replay.Record{Bytes: data, Item: replay.Item{LogID: id, Run: m.Run, Table: m.Table, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize,
		Source: m.Source, Task: m.Task, Attempt: m.Attempt, Worker: m.Worker, Status: uint8(m.Status), Tokens: 1, Digest: l.Digest(), Size: uint32(len(data)), Created: m.Created}}
}

// filled is a store with a trained group, a configured table and loose logs.
func filled(t *testing.T) store {
	t.Helper()
	ctx := t.Context()
	st := newStore(t)
	require.NoError(t, st.CreateRun(ctx, spec))
	cfg := table.Default()
	cfg.Sampler = table.Selector{Kind: table.MaxHeap}
	cfg.MaxTimesSampled = 0
	_, err := st.SetTable(ctx, "r", "offline", cfg, 0)
	require.NoError(t, err)
	tickets, err := st.TakeTickets(ctx, "r", "w", replay.AnyVersion, 1, time.Second)
	require.NoError(t, err)
	member := func(n uint32) func(*eventlog.Meta) {
		return func(m *eventlog.Meta) { m.Group, m.Member, m.GroupSize = tickets[0].Group, n, 2 }
	}
	recs := []replay.Record{
		record(t, "t0", "train", member(0), "mail ann@example.org now"), record(t, "t1", "train", member(1), "hello", "I am Bob"),
		record(t, "x0", "offline", nil, "one"), record(t, "x1", "offline", nil, "two"), record(t, "x2", "offline", nil, "three"),
		record(t, "a0", "audit", func(m *eventlog.Meta) { m.Worker = "w2" }, "secret 42"),
	}
	recs[0].Item.Reward, recs[0].Item.HasReward = 0.1, true
	recs[1].Item.Reward, recs[1].Item.HasReward = 1.0/3, true
	_, err = st.Append(ctx, recs)
	require.NoError(t, err)
	lease, err := st.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l", Groups: 1, TTL: time.Minute})
	require.NoError(t, err)
	d, err := st.PutBlob(ctx, []byte("weights"))
	require.NoError(t, err)
	require.NoError(t, st.Commit(ctx, replay.StepRecord{Run: "r", Step: 1, Version: 1, Lease: lease.ID, LogIDs: []string{"t0", "t1"}, Groups: []string{tickets[0].Group}, Checkpoint: d, Adapter: d}))
	_, err = st.UpdatePriorities(ctx, "r", "offline", []replay.GroupPriority{{Group: "x1", Priority: 5}, {Group: "x2", Priority: 0.25}})
	require.NoError(t, err)
	_, err = st.InsertGroups(ctx, "r", "offline", []replay.GroupInsert{{Group: "both", LogIDs: []string{"t0", "t1"}, HasPriority: true, Priority: 3}})
	require.NoError(t, err)
	_, err = st.RemoveGroups(ctx, "r", "offline", []string{"x0"}, "bad")
	require.NoError(t, err)
	return st
}

// everything reads all logs of a store, and its groups without their times.
func everything(t *testing.T, st store) (recs []replay.Record, groups []replay.TableGroup) {
	t.Helper()
	require.NoError(t, transfer.Find(t.Context(), st, "r", "", transfer.Filter{}, true, func(found []transfer.Found, _ string) error {
		for _, x := range found {
			recs = append(recs, x.Record)
		}
		return nil
	}))
	for _, name := range []string{"train", "offline"} {
		gs, _, err := st.TableGroups(t.Context(), "r", name, "", 100)
		require.NoError(t, err)
		for _, g := range gs {
			g.Inserted = time.Time{}
			groups = append(groups, g)
		}
	}
	return recs, groups
}

// TestExportImport: what comes back in another store is equal bit for bit, by
// either format, and importing again changes nothing.
func TestExportImport(t *testing.T) {
	from := filled(t)
	wantRecs, wantGroups := everything(t, from)
	require.Len(t, wantRecs, 6)
	for _, format := range []string{transfer.JSONL, transfer.Parquet} {
		t.Run(format, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			told := 0
			m, err := transfer.Export(t.Context(), from, "r", dir, transfer.ExportOptions{Format: format, FileBytes: 1, Progress: func(n int) { told = n }})
			require.NoError(t, err)
			require.Equal(t, 6, m.Logs)
			require.Equal(t, 6, told)
			to := newStore(t)
			rep, err := transfer.Import(t.Context(), to, dir, transfer.ImportOptions{})
			require.NoError(t, err)
			require.Equal(t, transfer.ImportReport{Run: "r", Created: true, Logs: 6, Groups: 5, Tables: []string{"offline"}}, rep)
			for range 2 {
				recs, groups := everything(t, to)
				require.Empty(t, cmp.Diff(wantRecs, recs))
				require.Empty(t, cmp.Diff(byName(wantGroups), byName(groups)))
				rep, err = transfer.Import(t.Context(), to, dir, transfer.ImportOptions{})
				require.NoError(t, err)
				require.Equal(t, transfer.ImportReport{Run: "r", Duplicates: 6, Present: 5, Kept: []string{"offline"}}, rep)
			}
			p, err := to.Latest(t.Context(), "r")
			require.NoError(t, err)
			require.EqualValues(t, 1, p.Version)
			// The table samples on, by the priorities it had.
			l, err := to.Lease(t.Context(), replay.LeaseRequest{Run: "r", Table: "offline", Holder: "h", Groups: 3, LearnerVersion: 1, TTL: time.Minute})
			require.NoError(t, err)
			require.Equal(t, []string{"x1", "both", "x2"}, []string{l.Groups[0].Group, l.Groups[1].Group, l.Groups[2].Group})
			// Under another name in the same store the ids are taken, which is said.
			rep, err = transfer.Import(t.Context(), to, dir, transfer.ImportOptions{Run: "other"})
			require.NoError(t, err)
			require.Equal(t, 6+4, rep.Rejected, "every log, and every group that holds one")
			require.Contains(t, rep.Reasons[0], "one of this id")
		})
	}
}

func byName(gs []replay.TableGroup) map[string]replay.TableGroup {
	out := map[string]replay.TableGroup{}
	for _, g := range gs {
		if g.State == "ready" || g.State == "dropped" {
			g.Seq = 0 // the order of insertion begins anew, and is kept among themselves
		}
		out[g.Group] = g
	}
	return out
}

// TestExportGoesOn: an interrupted export is finished by the next call, which
// writes no log twice; a changed file is refused.
func TestExportGoesOn(t *testing.T) {
	st := filled(t)
	dir := filepath.Join(t.TempDir(), "out")
	stop := errors.New("power cut")
	broken := &breaking{store: st, after: 2, err: stop}
	_, err := transfer.Export(t.Context(), broken, "r", dir, transfer.ExportOptions{Format: transfer.JSONL, FileBytes: 1})
	require.ErrorIs(t, err, stop)
	m, err := transfer.ReadManifest(dir)
	require.NoError(t, err)
	require.False(t, m.Complete)
	_, err = transfer.Import(t.Context(), st, dir, transfer.ImportOptions{})
	require.ErrorContains(t, err, "not complete")
	_, err = transfer.Export(t.Context(), st, "r", dir, transfer.ExportOptions{Format: transfer.Parquet})
	require.ErrorContains(t, err, "another filter or format")

	m, err = transfer.Export(t.Context(), st, "r", dir, transfer.ExportOptions{Format: transfer.JSONL, FileBytes: 1})
	require.NoError(t, err)
	require.Equal(t, 6, m.Logs)
	seen := map[string]bool{}
	for _, f := range m.Files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name))
		require.NoError(t, err)
		for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
			var row transfer.Row
			require.NoError(t, json.Unmarshal([]byte(line), &row))
			require.False(t, seen[row.LogID])
			seen[row.LogID] = true
		}
	}
	require.Len(t, seen, 6)
	_, err = transfer.Export(t.Context(), st, "r", dir, transfer.ExportOptions{Format: transfer.JSONL, FileBytes: 1})
	require.ErrorContains(t, err, "complete export")

	file := filepath.Join(dir, m.Files[0].Name)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
	_, err = transfer.Import(t.Context(), newStore(t), dir, transfer.ImportOptions{})
	require.ErrorContains(t, err, "changed or damaged")
}

// breaking fails after some groups were listed or logs read.
type breaking struct {
	store
	after int
	err   error
}

func (b *breaking) TableGroups(ctx context.Context, run, name, cursor string, limit int) ([]replay.TableGroup, string, error) {
	return nil, "", b.err
}

// TestFilters on what the index knows and on what is in a log.
func TestFilters(t *testing.T) {
	st := filled(t)
	f := func(x float64) *float64 { return &x }
	v := uint64(0)
	for i, c := range []struct {
		f    transfer.Filter
		want string
	}{
		{transfer.Filter{}, "t0 t1 x0 x1 x2 a0"},
		{transfer.Filter{Table: "audit"}, "a0"},
		{transfer.Filter{IDs: []string{"x1", "t0", "none"}}, "t0 x1"},
		{transfer.Filter{Task: "task-x2"}, "x2"},
		{transfer.Filter{Group: "x0"}, "x0"},
		{transfer.Filter{Worker: "w2"}, "a0"},
		{transfer.Filter{Author: "human:bob"}, "t1"},
		{transfer.Filter{Author: "human:*", Table: "train"}, "t0 t1"},
		{transfer.Filter{Author: "tool:x"}, ""},
		{transfer.Filter{Status: "failed"}, ""},
		{transfer.Filter{MinReward: f(0.2)}, "t1"},
		{transfer.Filter{MaxReward: f(0.2)}, "t0"},
		{transfer.Filter{MinVersion: 1}, ""},
		{transfer.Filter{MaxVersion: &v}, "t0 t1 x0 x1 x2 a0"},
		{transfer.Filter{Since: time.Unix(101, 0)}, ""},
		{transfer.Filter{Until: time.Unix(101, 0)}, "t0 t1 x0 x1 x2 a0"},
	} {
		var got []string
		require.NoError(t, transfer.Find(t.Context(), st, "r", "", c.f, false, func(found []transfer.Found, _ string) error {
			for _, x := range found {
				got = append(got, x.Record.Item.LogID)
			}
			return nil
		}))
		require.Equal(t, c.want, strings.Join(got, " "), "case %d", i)
	}
	for want, bad := range map[string]transfer.Filter{
		"status":            {Status: "great"},
		"min-reward 2":      {MinReward: f(2), MaxReward: f(1)},
		"min-version 1":     {MinVersion: 1, MaxVersion: &v},
		"is not before":     {Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
		"stands at the end": {Author: "human:*x"},
	} {
		require.ErrorContains(t, bad.Validate(), want)
	}
}

// TestRedact: text goes, tokens go, everything else stays, and what has nothing
// to redact is left as it is.
func TestRedact(t *testing.T) {
	r := record(t, "a", "train", nil, "mail ann@example.org, bob@example.org", "I am Bob")
	for name, c := range map[string]struct {
		rule transfer.Rule
		want []string
	}{
		"pattern": {transfer.Rule{Match: regexp.MustCompile(`\w+@[\w.]+`)}, []string{"mail [redacted], [redacted]", "I am Bob", "answer"}},
		"author":  {transfer.Rule{Author: "human:bob"}, []string{"mail ann@example.org, bob@example.org", "[redacted]", "answer"}},
		"prefix":  {transfer.Rule{Author: "human:*"}, []string{"[redacted]", "[redacted]", "answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			twin, digest, changed, err := c.rule.Redact(r.Bytes)
			require.NoError(t, err)
			require.True(t, changed)
			l, err := eventlog.Decode(twin)
			require.NoError(t, err)
			require.Equal(t, digest, l.Digest())
			require.NotEqual(t, r.Item.Digest, digest)
			require.Equal(t, "a", l.ID)
			require.Equal(t, eventlog.Light, l.Tier)
			require.Empty(t, l.Branches)
			var got []string
			for _, e := range l.Events {
				got = append(got, fmt.Sprint(e.Payload["text"]))
			}
			require.Equal(t, c.want, got)
			_, _, changed, err = c.rule.Redact(twin)
			require.NoError(t, err)
			require.False(t, changed, "again changes nothing")
		})
	}
	_, _, changed, err := transfer.Rule{Match: regexp.MustCompile("nothing like this")}.Redact(r.Bytes)
	require.NoError(t, err)
	require.False(t, changed)
}

// TestDeleteAndRedactAll in a store, some of it in use.
func TestDeleteAndRedactAll(t *testing.T) {
	ctx := t.Context()
	st := filled(t)
	l, err := st.Lease(ctx, replay.LeaseRequest{Run: "r", Table: "offline", Holder: "h", Groups: 1, LearnerVersion: 1, TTL: time.Minute})
	require.NoError(t, err)
	require.Equal(t, "x1", l.Groups[0].Group)
	mail := transfer.Rule{Match: regexp.MustCompile(`\w+@[\w.]+|two`)}
	rep, err := transfer.RedactAll(ctx, st, "r", transfer.Filter{}, mail, "asked", true)
	require.NoError(t, err)
	require.Equal(t, transfer.ChangeReport{Found: 6, Same: 4}, rep)
	rep, err = transfer.RedactAll(ctx, st, "r", transfer.Filter{}, mail, "asked", false)
	require.NoError(t, err)
	require.Equal(t, transfer.ChangeReport{Found: 6, Changed: 1, Same: 4, InUse: 1, Waiting: []string{"x1"}}, rep)
	recs, err := st.Fetch(ctx, []string{"t0"})
	require.NoError(t, err)
	require.NotContains(t, string(recs[0].Bytes), "ann@")
	require.Equal(t, 0.1, recs[0].Item.Reward)
	gs, _, err := st.TableGroups(ctx, "r", "offline", "", 10)
	require.NoError(t, err)
	require.Equal(t, "dropped", gs[0].State, "the group of the redacted log")

	rep, err = transfer.Delete(ctx, st, "r", transfer.Filter{Table: "offline"}, "asked", false)
	require.NoError(t, err)
	require.Equal(t, transfer.ChangeReport{Found: 3, Changed: 2, InUse: 1, Waiting: []string{"x1"}}, rep)
	require.NoError(t, st.Release(ctx, "r", l.ID, ""))
	rep, err = transfer.Delete(ctx, st, "r", transfer.Filter{Author: "human:*"}, "asked", false)
	require.NoError(t, err)
	require.Equal(t, 4, rep.Changed, "x1, t0, t1 and a0: who wrote stays when texts are redacted by pattern: %+v", rep)
}

// TestFollow: everything once, in order, what is there and what comes, from any
// token on.
func TestFollow(t *testing.T) {
	st := filled(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	enough := errors.New("enough")
	var ids, tokens []string
	err := transfer.Follow(ctx, st, "r", "", transfer.Filter{}, func(found []transfer.Found, _ string) error {
		for _, x := range found {
			ids, tokens = append(ids, x.Record.Item.LogID), append(tokens, x.Token)
		}
		switch len(ids) {
		case 6:
			_, err := st.Append(ctx, []replay.Record{record(t, "new", "audit", nil)})
			return err
		case 7:
			return enough
		}
		return nil
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, []string{"t0", "t1", "x0", "x1", "x2", "a0", "new"}, ids)
	_, err = st.DeleteLogs(ctx, "r", []string{"x0", "x2"}, "asked")
	require.NoError(t, err)
	for i, want := range []string{"t1 x1 a0 new", "x1 a0 new", "x1 a0 new", "a0 new"} {
		var rest []string
		err := transfer.Find(ctx, st, "r", tokens[i], transfer.Filter{}, false, func(found []transfer.Found, _ string) error {
			for _, x := range found {
				rest = append(rest, x.Record.Item.LogID)
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(rest, " "), "behind %s", ids[i])
	}
	go cancel()
	require.NoError(t, transfer.Follow(ctx, st, "r", tokens[6], transfer.Filter{}, func([]transfer.Found, string) error { return nil }))
}
