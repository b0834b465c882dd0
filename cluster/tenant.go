package cluster

import (
	"context"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// The tenants' part of the store, on the node, on the wire and at the client.

// SetQuota implements replay.TenantStore.
func (s *nodeStore) SetQuota(ctx context.Context, tenant string, q replay.Quota, version uint64) (uint64, error) {
	res, err := s.result(ctx, replay.SetQuotaCmd{Now: s.n.now(), Tenant: tenant, Quota: q, Version: version})
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
	who := callerOf(ctx)
	for _, t := range all {
		if !who.sees(t.Tenant) {
			continue
		}
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
	return &pb.TenantStatus{
		Tenant: t.Tenant, Quota: quotaTo(t.Quota), Version: t.Version, Set: nanos(t.Set), Bytes: t.Bytes, Logs: t.Logs,
		Tickets: t.Tickets, Refused: mapValues[int64](t.Refused), Runs: t.Runs,
	}
}

func tenantFrom(m *pb.TenantStatus) replay.TenantStatus {
	return replay.TenantStatus{
		Tenant: m.GetTenant(), Quota: quotaFrom(m.GetQuota()), Version: m.GetVersion(), Set: fromNanos(m.GetSet()), Bytes: m.GetBytes(),
		Logs: m.GetLogs(), Tickets: m.GetTickets(), Refused: mapValues[int](m.GetRefused()), Runs: m.GetRuns(),
	}
}

func mapValues[B, A int | int64](in map[string]A) map[string]B {
	if in == nil {
		return nil
	}
	out := make(map[string]B, len(in))
	for k, n := range in {
		out[k] = B(n)
	}
	return out
}
