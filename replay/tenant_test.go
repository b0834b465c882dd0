package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// world is a fold with several tenants' runs.
type world struct {
	t   require.TestingT
	kv  KV
	now time.Time
	ids int
}

func newWorld(t require.TestingT, tenants ...string) *world {
	w := &world{t: t, kv: NewMemKV(), now: epoch}
	for _, tenant := range tenants {
		require.NoError(t, w.do(CreateRunCmd{w.now, RunSpec{Run: "run-" + tenant, GroupSize: 1, GroupsPerStep: 8, TicketTTL: time.Minute, MaxAttempts: 2, Tenant: tenant}}).Err)
	}
	return w
}

func (w *world) do(c Command) Result {
	b, err := EncodeCommand(c)
	require.NoError(w.t, err)
	c, err = DecodeCommand(b)
	require.NoError(w.t, err)
	res, err := Apply(w.kv, c)
	require.NoError(w.t, err)
	return res
}

// store appends a log of the run to a table that only stores, or to group.
func (w *world) store(run, table, group string, size uint32) AppendResult {
	w.ids++
	return w.do(AppendItemsCmd{w.now, []Item{{LogID: fmt.Sprint("log", w.ids), Run: run, Table: table, Group: group, GroupSize: 1,
		Status: uint8(eventlog.OK), Tokens: 1, Size: size, Digest: "d"}}}).Append[0]
}

func (w *world) tenant(name string) TenantStatus {
	all, err := Tenants(w.kv)
	require.NoError(w.t, err)
	for _, t := range all {
		if t.Tenant == name {
			return t
		}
	}
	require.Fail(w.t, "no tenant", name)
	return TenantStatus{}
}

func TestQuotaHoldsOneTenantBack(t *testing.T) {
	w := newWorld(t, "a", "b")
	require.NoError(t, w.do(SetQuotaCmd{w.now, "a", Quota{Bytes: 100, Logs: 3}, 0}).Err)
	require.Empty(t, w.store("run-a", "x", "g1", 60).Busy)
	require.Equal(t, `quota of tenant "a": 60 bytes are stored, 41 more would be above bytes = 100`, w.store("run-a", "x", "g2", 41).Busy)
	require.Empty(t, w.store("run-a", "x", "g3", 20).Busy)
	require.Empty(t, w.store("run-a", "x", "g4", 20).Busy)
	require.Equal(t, `quota of tenant "a": 3 logs are stored, at most logs = 3`, w.store("run-a", "x", "g5", 0).Busy)
	for i := range 10 {
		require.Empty(t, w.store("run-b", "x", fmt.Sprint("g", i), 1000).Busy, "another tenant's quota")
	}
	a := w.tenant("a")
	require.Equal(t, TenantStatus{Tenant: "a", Quota: Quota{Bytes: 100, Logs: 3}, Version: 1, Set: epoch, Bytes: 100, Logs: 3,
		Refused: map[string]int{"bytes": 1, "logs": 1}, Runs: []string{"run-a"}}, a)
	why, err := BusyTenant(w.kv, Item{Run: "run-a", Size: 0}, w.now)
	require.NoError(t, err)
	require.Contains(t, why, "at most logs = 3")

	// What is deleted makes room; a table of the tenant is held back like any.
	require.NoError(t, w.do(DeleteLogsCmd{w.now, "run-a", []string{"log1"}, "old"}).Err)
	require.Equal(t, uint64(40), w.tenant("a").Bytes)
	require.Empty(t, w.store("run-a", "x", "g6", 5).Busy)
}

func TestQuotaOfAppendsPerSecond(t *testing.T) {
	w := newWorld(t, "a")
	require.NoError(t, w.do(SetQuotaCmd{w.now, "a", Quota{AppendsPerSecond: 4}, 0}).Err)
	took := func(n int) (ok int) {
		for i := range n {
			r := w.store("run-a", "x", fmt.Sprint(w.ids, i), 1)
			if r.Busy == "" {
				ok++
			} else {
				require.Contains(t, r.Busy, `quota of tenant "a": more than appends_per_second = `)
			}
		}
		return ok
	}
	require.Equal(t, 4, took(10), "a second's worth at once")
	w.now = w.now.Add(250 * time.Millisecond)
	require.Equal(t, 1, took(10))
	w.now = w.now.Add(time.Hour)
	require.Equal(t, 4, took(10), "an idle hour saves up one second")
	require.NoError(t, w.do(SetQuotaCmd{w.now, "a", Quota{AppendsPerSecond: 0.5}, 1}).Err)
	w.now = w.now.Add(time.Minute)
	require.Equal(t, 1, took(5), "below one a second, one at once")
	w.now = w.now.Add(2 * time.Second)
	require.Equal(t, 1, took(5))
}

func TestQuotaOfTickets(t *testing.T) {
	w := newWorld(t, "a", "b")
	require.NoError(t, w.do(SetQuotaCmd{w.now, "a", Quota{Tickets: 2}, 0}).Err)
	take := func(run string) []Ticket { return w.do(TakeTicketsCmd{w.now, run, "w", 100, ""}).Tickets }
	out := take("run-a")
	require.Len(t, out, 2)
	require.Empty(t, take("run-a"))
	some, err := HasTickets(w.kv, "run-a", "w", epoch)
	require.NoError(t, err)
	require.False(t, some, "a worker that waits must not ask the fold again and again")
	require.Len(t, take("run-b"), 8)
	require.Empty(t, w.store("run-a", TableTrain, out[0].Group, 1).Busy)
	require.Len(t, take("run-a"), 1, "one came back")
	w.now = w.now.Add(time.Hour) // tickets expire
	require.Len(t, take("run-a"), 2)
	require.Equal(t, uint64(2), w.tenant("a").Tickets)
}

// The default tenant is not counted before its first quota, so that what older
// builds wrote folds to the same state; then it is counted once.
func TestFirstQuotaOfTheDefaultTenantCountsOnce(t *testing.T) {
	w := newWorld(t, "")
	for i := range 5 {
		w.store("run-", "x", fmt.Sprint("g", i), 10)
	}
	w.do(TakeTicketsCmd{w.now, "run-", "w", 3, ""})
	_, kept, err := w.kv.Get(tenantKey(""))
	require.NoError(t, err)
	require.False(t, kept)
	require.Equal(t, uint64(50), w.tenant("").Bytes, "without a quota they are counted when asked")
	require.NoError(t, w.do(SetQuotaCmd{w.now, "", Quota{Logs: 6}, 0}).Err)
	require.Empty(t, w.store("run-", "x", "g5", 10).Busy)
	require.Equal(t, `quota of tenant default: 6 logs are stored, at most logs = 6`, w.store("run-", "x", "g6", 10).Busy)
	s := w.tenant("")
	require.Equal(t, []uint64{6, 60, 3}, []uint64{s.Logs, s.Bytes, s.Tickets})
}

func TestQuotaRefusals(t *testing.T) {
	w := newWorld(t, "a")
	set := func(tenant string, q Quota, v uint64) error { return w.do(SetQuotaCmd{w.now, tenant, q, v}).Err }
	require.NoError(t, set("a", Quota{Logs: 5}, 0))
	require.NoError(t, set("a", Quota{Logs: 5}, 0), "the same again is a success")
	require.ErrorIs(t, set("a", Quota{Logs: 6}, 0), ErrStale)
	require.NoError(t, set("a", Quota{Logs: 6}, 1))
	require.Equal(t, uint64(2), w.tenant("a").Version)
	for _, name := range []string{"default", "*", "a b", "-a"} {
		require.ErrorIs(t, set(name, Quota{}, 0), ErrInvalid, name)
	}
	require.ErrorIs(t, set("a", Quota{AppendsPerSecond: -1}, 2), ErrInvalid)
	require.ErrorIs(t, set("a", Quota{Bytes: 1 << 63}, 2), ErrInvalid)
	err := w.do(CreateRunCmd{w.now, RunSpec{Run: "run-a", GroupSize: 1, GroupsPerStep: 8, TicketTTL: time.Minute, MaxAttempts: 2, Tenant: "b"}}).Err
	require.ErrorContains(t, err, "another tenant's")
}

// Whatever happens, what is kept of a tenant is what its runs hold.
func TestTenantCountsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, "", "a")
		versions := map[string]uint64{}
		var groups []Ticket
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			tenant := rapid.SampledFrom([]string{"", "a"}).Draw(t, "tenant")
			run := "run-" + tenant
			switch rapid.SampledFrom([]string{"store", "take", "finish", "return", "delete", "quota", "wait"}).Draw(t, "op") {
			case "store":
				w.store(run, "x", fmt.Sprint("g", w.ids), uint32(rapid.IntRange(0, 50).Draw(t, "size")))
			case "take":
				groups = append(groups, w.do(TakeTicketsCmd{w.now, run, "w", rapid.IntRange(1, 3).Draw(t, "n"), ""}).Tickets...)
			case "finish":
				if len(groups) > 0 {
					w.store(groups[0].Run, TableTrain, groups[0].Group, 7)
					groups = groups[1:]
				}
			case "return":
				w.do(ReturnTicketCmd{w.now, run, "", "w"})
			case "delete":
				w.do(DeleteLogsCmd{w.now, run, []string{fmt.Sprint("log", rapid.IntRange(1, max(1, w.ids)).Draw(t, "log"))}, "old"})
			case "quota":
				q := Quota{Bytes: uint64(rapid.IntRange(0, 300).Draw(t, "bytes")), Tickets: uint32(rapid.IntRange(0, 4).Draw(t, "tickets"))}
				res := w.do(SetQuotaCmd{w.now, tenant, q, versions[tenant]})
				require.NoError(t, res.Err)
				versions[tenant] = res.Version
			case "wait":
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "s")) * time.Second)
				w.do(TickCmd{w.now})
			}
			for tenant := range versions {
				have := new(pb.TenantState)
				_, err := load(w.kv, tenantKey(tenant), have)
				require.NoError(t, err)
				want, err := countTenant(w.kv, tenant)
				require.NoError(t, err)
				require.True(t, proto.Equal(want, &pb.TenantState{Bytes: have.Bytes, Logs: have.Logs, Tickets: have.Tickets}), "%v, counted %v", have, want)
			}
		}
	})
}
