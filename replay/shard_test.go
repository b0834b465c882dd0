package replay

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// decided applies a command that must not be refused; it travels encoded.
func decided(t *testing.T, kv KV, cmd Command) Result {
	t.Helper()
	res := judged(t, kv, cmd)
	require.NoError(t, res.Err)
	return res
}

func judged(t *testing.T, kv KV, cmd Command) Result {
	t.Helper()
	b, err := EncodeCommand(cmd)
	require.NoError(t, err)
	cmd, err = DecodeCommand(b)
	require.NoError(t, err)
	res, err := Apply(kv, cmd)
	require.NoError(t, err)
	return res
}

func pairsOf(t *testing.T, kv Reader, run string) (out []Pair) {
	t.Helper()
	require.NoError(t, RunPairs(kv, run, func(p Pair) error { out = append(out, p); return nil }))
	return out
}

func runsIn(t *testing.T, kv Reader) []string {
	t.Helper()
	runs, err := Runs(kv)
	require.NoError(t, err)
	return runs
}

// relocate moves a run with the commands that a mover proposes.
func relocate(t *testing.T, from, to KV, run string, move uint64, now time.Time) {
	t.Helper()
	decided(t, from, MoveRunCmd{now, run, move, MoveFreeze, ""})
	require.ErrorIs(t, judged(t, from, FinishRunCmd{now, run}).Err, ErrMoved)
	decided(t, to, MoveRunCmd{now, run, move, MoveBegin, ""})
	pairs := pairsOf(t, from, run)
	for part := range slices.Chunk(pairs, 7) {
		decided(t, to, AdoptPairsCmd{now, run, move, part})
		require.ErrorIs(t, judged(t, to, FinishRunCmd{now, run}).Err, ErrMoved)
	}
	require.Equal(t, pairs, pairsOf(t, to, run))
	decided(t, to, MoveRunCmd{now, run, move, MoveThaw, ""})
	for part := range slices.Chunk(pairs, 5) {
		var keys [][]byte
		for _, p := range part {
			keys = append(keys, p.Key)
		}
		decided(t, from, DropPairsCmd{now, run, move, keys})
	}
	decided(t, from, MoveRunCmd{now, run, move, MoveLeave, "b"})
	require.ErrorIs(t, judged(t, from, FinishRunCmd{now, run}).Err, ErrMoved)
	require.ErrorIs(t, Elsewhere(from, run), ErrMoved)
	require.NoError(t, Elsewhere(to, run))
}

// TestMovedHistories moves every run of recorded histories at several points,
// and back: afterwards their state is the one of a run that never moved.
func TestMovedHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/history/v2/*.cmds")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".cmds"), func(t *testing.T) {
			cmds := readCommands(t, file)
			want := NewMemKV()
			foldAll(t, want, cmds)
			for _, at := range []int{len(cmds) / 4, len(cmds) / 2, len(cmds) - 1} {
				back := at + (len(cmds)-at)/2
				if at == 0 {
					continue
				}
				home, away := NewMemKV(), NewMemKV()
				here := home
				for i, b := range cmds {
					c, err := DecodeCommand(b)
					require.NoError(t, err)
					now := c.Clock()
					if i == at {
						for _, run := range runsIn(t, home) {
							relocate(t, home, away, run, 1, now)
						}
						here = away
					}
					if i == back {
						for _, run := range runsIn(t, away) {
							relocate(t, away, home, run, 2, now)
						}
						here = home
					}
					// What is no run's is done in both places.
					if runOf(c) == "" && here == away {
						_, err = Apply(home, c)
						require.NoError(t, err)
					}
					_, err = Apply(here, c)
					require.NoError(t, err)
				}
				for _, run := range runsIn(t, want) {
					w, g := pairsOf(t, want, run), pairsOf(t, home, run)
					require.Equal(t, len(w), len(g), "move at %d and %d of %d", at, back, len(cmds))
					for i := range w {
						require.Equal(t, string(w[i].Key), string(g[i].Key))
						require.True(t, bytes.Equal(w[i].Value, g[i].Value), "value of %q", w[i].Key)
					}
				}
			}
		})
	}
}

func TestMoveFences(t *testing.T) {
	now := epoch
	a, b := NewMemKV(), NewMemKV()
	spec := RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 2}
	decided(t, a, CreateRunCmd{now, spec})
	decided(t, a, TakeTicketsCmd{Now: now, Run: "r", Worker: "w", N: 1})

	step := func(kv KV, run string, move uint64, s MoveStep) error {
		return judged(t, kv, MoveRunCmd{now, run, move, s, "b"}).Err
	}
	require.NoError(t, step(a, "r", 5, MoveFreeze))
	require.NoError(t, step(a, "r", 5, MoveFreeze), "a step may be repeated")
	require.NoError(t, step(b, "r", 5, MoveBegin))
	pairs := pairsOf(t, a, "r")
	// A deadline that passes while the run stands still changes nothing.
	decided(t, a, TickCmd{now.Add(time.Hour)})
	require.Equal(t, pairs, pairsOf(t, a, "r"))

	// Another mover takes over: the first decides nothing any more.
	require.NoError(t, step(b, "r", 6, MoveBegin))
	require.ErrorIs(t, judged(t, b, AdoptPairsCmd{now, "r", 5, pairs}).Err, ErrStale)
	require.ErrorIs(t, step(b, "r", 5, MoveThaw), ErrStale)
	decided(t, b, AdoptPairsCmd{now, "r", 6, pairs})

	// Keys of others are refused, and nothing of such a part is kept.
	decided(t, b, CreateRunCmd{now, RunSpec{Run: "other", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 2}})
	for _, k := range []key{runKey("other"), groupKey("other", "g"), tenantKey("t"), shardKey("s"), placementKey("r"), goneKey("r"), expiryKey(9, "other", "", 0), key("l"), key("x"), {}} {
		require.ErrorIs(t, judged(t, b, AdoptPairsCmd{now, "r", 6, []Pair{{Key: k, Value: []byte("x")}}}).Err, ErrInvalid, "%q", k)
		require.ErrorIs(t, judged(t, b, DropPairsCmd{now, "r", 6, [][]byte{k}}).Err, ErrInvalid, "%q", k)
	}
	require.ErrorIs(t, step(b, "other", 6, MoveBegin), ErrInvalid, "a run that lives there is not overwritten")
	require.ErrorIs(t, step(b, "r", 6, MoveLeave), ErrInvalid, "its pairs are there")
	require.ErrorIs(t, step(b, "r", 6, MoveFreeze), ErrInvalid)

	// Taken back: the late steps of the move do no harm.
	require.NoError(t, step(a, "r", 7, MoveThaw))
	require.ErrorIs(t, step(a, "r", 6, MoveFreeze), ErrStale)
	require.ErrorIs(t, step(a, "r", 7, MoveFreeze), ErrStale)
	require.ErrorIs(t, judged(t, a, DropPairsCmd{now, "r", 7, nil}).Err, ErrStale)
	require.ErrorIs(t, step(a, "r", 8, MoveLeave), ErrInvalid)
	require.NoError(t, judged(t, a, FinishRunCmd{now, "r"}).Err)
}

func TestPlacements(t *testing.T) {
	now := epoch
	kv := NewMemKV()
	place := func(p Placement) (Placement, error) {
		res := judged(t, kv, PlaceRunCmd{now, p})
		return res.Placement, res.Err
	}
	_, err := place(Placement{Run: "r", Shard: "b"})
	require.ErrorIs(t, err, ErrNotFound, "no such shard")
	b := Shard{Name: "b", Group: "b.1", Addrs: []string{"h:1"}}
	require.Equal(t, uint64(1), decided(t, kv, SetShardCmd{now, b}).Shard.Version)
	require.Equal(t, uint64(1), decided(t, kv, SetShardCmd{now, b}).Shard.Version, "the same again")
	b.Addrs = []string{"h:2"}
	require.ErrorIs(t, judged(t, kv, SetShardCmd{now, b}).Err, ErrStale)
	b.Version = 1
	require.Equal(t, uint64(2), decided(t, kv, SetShardCmd{now, b}).Shard.Version)
	for _, bad := range []Shard{{Name: "B", Group: "x", Addrs: b.Addrs}, {Name: "c", Group: "b.1", Addrs: b.Addrs}, {Name: "b", Group: "b.2", Addrs: b.Addrs, Version: 2}, {Name: "c", Group: "c.1"}} {
		require.ErrorIs(t, judged(t, kv, SetShardCmd{now, bad}).Err, ErrInvalid, "%+v", bad)
	}

	p, err := place(Placement{Run: "r", Shard: "b", Tenant: "t"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), p.Version)
	same, err := place(Placement{Run: "r", Shard: RootShard})
	require.NoError(t, err)
	require.Equal(t, p, same, "placed once")
	spec := RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 2}
	require.ErrorIs(t, judged(t, kv, CreateRunCmd{now, spec}).Err, ErrMoved)
	res := judged(t, kv, AppendItemsCmd{now, []Item{{Run: "r"}}})
	require.Contains(t, res.Append[0].Busy, `lives in shard "b"`)

	move := func(shard, to string, phase PlacePhase) error {
		q, err := place(Placement{Run: "r", Shard: shard, To: to, Phase: phase, Version: p.Version})
		if err == nil {
			p = q
		}
		return err
	}
	require.ErrorIs(t, move("b", "b", PlaceCopying), ErrInvalid)
	require.ErrorIs(t, move(RootShard, "b", PlaceSwitched), ErrInvalid, "nothing was copied")
	require.ErrorIs(t, move(RootShard, "", PlaceAtRest), ErrInvalid)
	require.NoError(t, move("b", RootShard, PlaceCopying))
	require.NoError(t, move("b", RootShard, PlaceCopying), "another mover takes over")
	require.NoError(t, move("b", "", PlaceAtRest), "taken back")
	require.NoError(t, move("b", RootShard, PlaceCopying))
	old := p.Version
	require.NoError(t, move(RootShard, "b", PlaceSwitched))
	_, err = place(Placement{Run: "r", Shard: "b", Version: old})
	require.ErrorIs(t, err, ErrStale)
	require.ErrorIs(t, move("b", "", PlaceAtRest), ErrInvalid, "too late to take back")
	require.NoError(t, move(RootShard, "b", PlaceSwitched))
	require.NoError(t, move(RootShard, "", PlaceAtRest))
	require.Equal(t, "t", p.Tenant)
	require.NoError(t, judged(t, kv, CreateRunCmd{now, spec}).Err)

	// A run from before there were shards is the root's.
	spec.Run = "old"
	decided(t, kv, CreateRunCmd{now, spec})
	q, err := place(Placement{Run: "old", Shard: "b"})
	require.NoError(t, err)
	require.Equal(t, RootShard, q.Shard)
}
