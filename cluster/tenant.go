package cluster

import (
	"context"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// The tenants' part of the store, on the node, on the wire and at the client.

// SetQuota implements replay.TenantStore.
func (s *nodeStore) SetQuota(ctx context.Context, tenant string, q replay.Quota, version uint64) (uint64, error) {
	res, err := s.result(ctx, replay.SetQuotaCmd{Now: time.Now(), Tenant: tenant, Quota: q, Version: version})
	return res.Version, err
}

// Tenants implements replay.TenantStore.
func (s *nodeStore) Tenants(ctx context.Context) ([]replay.TenantStatus, error) {
	return query(ctx, s.n, replay.Tenants)
}

func (r *replayServer) SetQuota(ctx context.Context, q *pb.SetQuotaRequest) (*pb.SetQuotaResponse, error) {
	v, err := r.s.SetQuota(ctx, q.GetTenant(), quotaFrom(q.GetQuota()), q.GetVersion())
	return &pb.SetQuotaResponse{Version: v}, err
}

func (r *replayServer) Tenants(ctx context.Context, _ *pb.Empty) (*pb.TenantsResponse, error) {
	all, err := r.s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	out := new(pb.TenantsResponse)
	for _, t := range all {
		out.Tenants = append(out.Tenants, tenantTo(t))
	}
	return out, nil
}

// SetQuota implements replay.TenantStore. A retry whose first try was decided
// finds the same quota there, which is a success.
func (c *Client) SetQuota(ctx context.Context, tenant string, q replay.Quota, version uint64) (uint64, error) {
	a, err := unary(ctx, c, "set the quota of tenant "+tenant, 0, &pb.SetQuotaRequest{Tenant: tenant, Quota: quotaTo(q), Version: version}, pb.ReplayClient.SetQuota)
	return a.GetVersion(), err
}

// Tenants implements replay.TenantStore.
func (c *Client) Tenants(ctx context.Context) ([]replay.TenantStatus, error) {
	a, err := unary(ctx, c, "list tenants", 0, &pb.Empty{}, pb.ReplayClient.Tenants)
	return mapSlice(a.GetTenants(), tenantFrom), err
}

func quotaTo(q replay.Quota) *pb.Quota {
	return &pb.Quota{Bytes: q.Bytes, Logs: q.Logs, AppendsPerSecond: q.AppendsPerSecond, Tickets: q.Tickets}
}

func quotaFrom(q *pb.Quota) replay.Quota {
	return replay.Quota{Bytes: q.GetBytes(), Logs: q.GetLogs(), AppendsPerSecond: q.GetAppendsPerSecond(), Tickets: q.GetTickets()}
}

func tenantTo(t replay.TenantStatus) *pb.TenantStatus {
	m := &pb.TenantStatus{
		Tenant: t.Tenant, Quota: quotaTo(t.Quota), Version: t.Version, Set: nanos(t.Set), Bytes: t.Bytes, Logs: t.Logs,
		Tickets: t.Tickets, Refused: map[string]int64{}, Runs: t.Runs,
	}
	for k, n := range t.Refused {
		m.Refused[k] = int64(n)
	}
	return m
}

func tenantFrom(m *pb.TenantStatus) replay.TenantStatus {
	t := replay.TenantStatus{
		Tenant: m.GetTenant(), Quota: quotaFrom(m.GetQuota()), Version: m.GetVersion(), Set: fromNanos(m.GetSet()), Bytes: m.GetBytes(),
		Logs: m.GetLogs(), Tickets: m.GetTickets(), Refused: map[string]int{}, Runs: m.GetRuns(),
	}
	for k, n := range m.GetRefused() {
		t.Refused[k] = int(n)
	}
	return t
}
