package replay

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Reasons for which a tenant's producers and workers wait.
const (
	fullBytes   = "bytes"
	fullLogs    = "logs"
	fullRate    = "appends_per_second"
	fullTickets = "tickets"
)

// tenantState is a loaded tenant; changes are written by fold.flush. Its message
// is nil where nothing is kept: of the default tenant before its first quota.
type tenantState struct {
	*pb.TenantState
	tenant string
}

// tenant loads a tenant to be changed.
func (f *fold) tenant(name string) (*tenantState, error) {
	for _, t := range f.tenants {
		if t.tenant == name {
			return t, nil
		}
	}
	m := new(pb.TenantState)
	ok, err := load(f.kv, tenantKey(name), m)
	if err != nil {
		return nil, err
	}
	if !ok {
		m = nil
	}
	t := &tenantState{m, name}
	f.tenants = append(f.tenants, t)
	return t, nil
}

// tenantOf is tenant of a run's, nil where nothing is kept.
func (f *fold) tenantOf(r *runState) (*pb.TenantState, error) {
	t, err := f.tenant(r.Spec.GetTenant())
	if err != nil {
		return nil, err
	}
	return t.TenantState, nil
}

// foundTenant begins to keep what a new tenant's runs hold.
func (f *fold) foundTenant(name string) error {
	t, err := f.tenant(name)
	if err == nil && name != "" && t.TenantState == nil {
		t.TenantState = new(pb.TenantState)
	}
	return err
}

// setQuota replaces a tenant's quota. The first one of a tenant counts what its
// runs hold, once.
func (f *fold) setQuota(c SetQuotaCmd) (uint64, error) {
	if err := CheckTenant(c.Tenant); err != nil {
		return 0, refuse(ErrInvalid, "%w", err)
	}
	if err := c.Quota.Validate(); err != nil {
		return 0, &refusal{err}
	}
	t, err := f.tenant(c.Tenant)
	if err != nil {
		return 0, err
	}
	want := quotaToPB(c.Quota)
	if t.GetVersion() > 0 && proto.Equal(t.Quota, want) {
		return t.Version, nil
	}
	if have := t.GetVersion(); c.Version != have {
		return 0, refuse(ErrStale, "quota of tenant %s: it has version %d, this would replace %d (read it again)", showTenant(c.Tenant), have, c.Version)
	}
	if t.TenantState == nil {
		if t.TenantState, err = countTenant(f.kv, c.Tenant); err != nil {
			return 0, err
		}
	}
	t.Quota, t.Version, t.Set = want, c.Version+1, f.now
	return t.Version, nil
}

// showTenant is a tenant's name for people.
func showTenant(name string) string {
	if name == "" {
		return DefaultTenantName
	}
	return fmt.Sprintf("%q", name)
}

// countTenant counts what a tenant's runs hold.
func countTenant(kv Reader, tenant string) (*pb.TenantState, error) {
	t := new(pb.TenantState)
	runs, err := runsOf(kv, tenant)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		var ids []string
		err := kv.Iterate(keys.New('i').Str(run), nil, func(_, v []byte) bool {
			ids = append(ids, string(v))
			return true
		})
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			s, err := loadItem(kv, id)
			if err != nil {
				return nil, unexpected(err)
			}
			t.Logs++
			t.Bytes += uint64(s.Item.GetSize())
		}
		err = kv.Iterate(keys.New('t').Str(run), nil, func(_, _ []byte) bool {
			t.Tickets++
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

func runsOf(kv Reader, tenant string) (runs []string, err error) {
	err = eachRun(kv, func(r *pb.RunState) {
		if r.GetSpec().GetTenant() == tenant {
			runs = append(runs, r.GetSpec().GetRun())
		}
	})
	return runs, err
}

// admit says why a tenant's quota takes no log of that size now; "" = it does.
// Rates are those of the generic cell rate algorithm (ITU-T I.371), with a burst
// of one second.
func admit(t *pb.TenantState, size uint64, now int64) (kind, why string) {
	q := t.GetQuota()
	if most := q.GetBytes(); most > 0 && t.Bytes+size > most {
		return fullBytes, fmt.Sprintf("%d bytes are stored, %d more would be above bytes = %d", t.Bytes, size, most)
	}
	if most := q.GetLogs(); most > 0 && t.Logs >= most {
		return fullLogs, fmt.Sprintf("%d logs are stored, at most logs = %d", t.Logs, most)
	}
	if each := interval(q); each > 0 && max(t.AppendDue, now)+each-now > max(each, int64(time.Second)) {
		return fullRate, fmt.Sprintf("more than appends_per_second = %v", q.GetAppendsPerSecond())
	}
	return "", ""
}

// interval is the time that the quota's rate gives one append; 0 = no bound.
func interval(q *pb.Quota) int64 {
	if rate := q.GetAppendsPerSecond(); rate > 0 {
		return int64(float64(time.Second) / rate)
	}
	return 0
}

// overQuota answers an append that the tenant of r may not make now; nil = it may.
func (f *fold) overQuota(r *runState, it *Item) (*AppendResult, error) {
	t, err := f.tenantOf(r)
	if err != nil || t == nil {
		return nil, err
	}
	kind, why := admit(t, uint64(it.Size), f.now)
	if why == "" {
		return nil, nil
	}
	t.Refused = countReason(t.Refused, kind)
	return &AppendResult{Busy: busyTenant(r.Spec.GetTenant(), why)}, nil
}

func busyTenant(tenant, why string) string {
	return fmt.Sprintf("quota of tenant %s: %s", showTenant(tenant), why)
}

// charge counts a stored log.
func (f *fold) charge(r *runState, it *Item) error {
	t, err := f.tenantOf(r)
	if err != nil || t == nil {
		return err
	}
	t.Logs++
	t.Bytes += uint64(it.Size)
	if each := interval(t.Quota); each > 0 {
		t.AppendDue = max(t.AppendDue, f.now) + each
	}
	return nil
}

// refund counts a deleted log.
func (f *fold) refund(r *runState, it *pb.Item) error {
	t, err := f.tenantOf(r)
	if err != nil || t == nil {
		return err
	}
	t.Logs--
	t.Bytes -= uint64(it.GetSize())
	return nil
}

// countTicket counts a ticket that goes out (1) or comes back (-1).
func (f *fold) countTicket(r *runState, by int64) error {
	t, err := f.tenantOf(r)
	if err == nil && t != nil {
		t.Tickets = uint64(int64(t.Tickets) + by)
	}
	return err
}

// ticketsLeft says whether the tenant of r may have another ticket out.
func (f *fold) ticketsLeft(r *runState) (bool, error) {
	t, err := f.tenantOf(r)
	if err != nil || t == nil || !ticketsFull(t) {
		return true, err
	}
	t.Refused = countReason(t.Refused, fullTickets)
	return false, nil
}

func ticketsFull(t *pb.TenantState) bool {
	most := uint64(t.GetQuota().GetTickets())
	return most > 0 && t.Tickets >= most
}

func quotaToPB(q Quota) *pb.Quota {
	return &pb.Quota{Bytes: q.Bytes, Logs: q.Logs, AppendsPerSecond: q.AppendsPerSecond, Tickets: q.Tickets}
}

func quotaFromPB(m *pb.Quota) Quota {
	return Quota{Bytes: m.GetBytes(), Logs: m.GetLogs(), AppendsPerSecond: m.GetAppendsPerSecond(), Tickets: m.GetTickets()}
}

// TenantOf is the tenant that a run belongs to.
func TenantOf(kv Reader, run string) (string, error) {
	r, err := readRun(kv, run)
	return r.GetSpec().GetTenant(), err
}

// HasQuotas says whether any tenant is counted: without one BusyTenant is "" for
// every item.
func HasQuotas(kv Reader) (bool, error) { return hasAny(kv, keys.New('N')) }

// BusyTenant says why the quota of an item's tenant would not take it at that
// time; "" = it would. It spares writing bytes that the fold would refuse.
func BusyTenant(kv Reader, it Item, now time.Time) (string, error) {
	tenant, err := TenantOf(kv, it.Run)
	if err != nil {
		return "", nil //nolint:nilerr // the fold says what is wrong with the run
	}
	t := new(pb.TenantState)
	if ok, err := load(kv, tenantKey(tenant), t); err != nil || !ok {
		return "", err
	}
	if _, why := admit(t, uint64(it.Size), nanos(now)); why != "" {
		return busyTenant(tenant, why), nil
	}
	return "", nil
}

// Tenants lists the tenants that have a run or a quota, by name.
func Tenants(kv Reader) ([]TenantStatus, error) {
	runs := map[string][]string{"": nil}
	if err := eachRun(kv, func(r *pb.RunState) {
		runs[r.GetSpec().GetTenant()] = append(runs[r.GetSpec().GetTenant()], r.GetSpec().GetRun())
	}); err != nil {
		return nil, err
	}
	states := map[string]*pb.TenantState{}
	var bad error
	prefix := keys.New('N')
	err := kv.Iterate(prefix, nil, func(k, v []byte) bool {
		m := new(pb.TenantState)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		name := keys.Unescape(k[len(prefix):])
		states[name], runs[name] = m, runs[name]
		return true
	})
	if err != nil || bad != nil {
		return nil, firstError(err, bad)
	}
	var out []TenantStatus
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		m := states[name]
		if m == nil {
			if m, err = countTenant(kv, name); err != nil {
				return nil, err
			}
		}
		out = append(out, TenantStatus{
			Tenant: name, Quota: quotaFromPB(m.Quota), Version: m.Version, Set: fromNanos(m.Set), Bytes: m.Bytes, Logs: m.Logs,
			Tickets: m.Tickets, Refused: counts(m.Refused), Runs: runs[name],
		})
	}
	return out, nil
}
