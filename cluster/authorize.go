package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// AllTenants, as the tenant of a certificate, is every tenant: a worker with it
// serves the runs of all.
const AllTenants = "*"

// caller is who makes a call, by certificate.
type caller struct {
	id, role string
	tenant   string // "" = the default one
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// operator says whether the caller administers the cluster and sees everything:
// replay nodes, and clients that joined with the cluster's own token.
func (c caller) operator() bool {
	return c.role == RoleReplay || c.role == RoleClient && (c.tenant == "" || c.tenant == AllTenants)
}

// sees says whether the caller may touch what belongs to a tenant.
func (c caller) sees(tenant string) bool {
	return c.operator() || c.tenant == AllTenants || c.tenant == tenant
}

// String names the caller in messages.
func (c caller) String() string {
	s := fmt.Sprintf("%s %q", c.role, c.id)
	if c.tenant != "" {
		s += fmt.Sprintf(" of tenant %q", c.tenant)
	}
	return s
}

// mustOperate refuses whoever is not an operator.
func (c caller) mustOperate(what string) error {
	if c.operator() {
		return nil
	}
	return fmt.Errorf("%w: %s: %s may not: use a certificate of role %s that was got with the cluster's own token", ErrDenied, what, c, RoleClient)
}

// checkTenantOf says whether a certificate of the role can name the tenant.
func checkTenantOf(role, tenant string) error {
	if tenant == "" || tenant == AllTenants && (role == RoleWorker || role == RoleClient) {
		return nil
	}
	if role == RoleReplay {
		return fmt.Errorf("cluster: tenant %q: replay nodes serve all tenants: leave it out", tenant)
	}
	if tenant == AllTenants {
		return fmt.Errorf("cluster: tenant %q: a %s belongs to one tenant: name it", tenant, role)
	}
	if err := replay.CheckTenant(tenant); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// admit lets members call, anybody join, and only replay nodes speak as peers.
func admit(ctx context.Context, method string) (context.Context, error) {
	if method == pb.Membership_Join_FullMethodName {
		return ctx, nil
	}
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: no connection", ErrDenied)
	}
	tls, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, fmt.Errorf("%w: no TLS", ErrDenied)
	}
	who, err := stateNode(tls.State)
	if err != nil {
		return nil, fmt.Errorf("%w: %s needs a certificate of this cluster: join with its token first: %w", ErrDenied, method, err)
	}
	if (of(method, pb.Peer_ServiceDesc.ServiceName) || of(method, pb.Upkeep_ServiceDesc.ServiceName)) && who.role != RoleReplay {
		return nil, fmt.Errorf("%w: %s is for replay nodes; %s is a %s", ErrDenied, method, who.id, who.role)
	}
	if of(method, pb.Learner_ServiceDesc.ServiceName) && who.role != RoleLearner {
		return nil, fmt.Errorf("%w: %s is for learners; %s is a %s", ErrDenied, method, who.id, who.role)
	}
	if of(method, pb.Policies_ServiceDesc.ServiceName) && who.role != RoleWorker {
		return nil, fmt.Errorf("%w: %s is for workers; %s is a %s", ErrDenied, method, who.id, who.role)
	}
	return context.WithValue(ctx, callerKey{}, who), nil
}

func of(method, service string) bool { return strings.HasPrefix(method, "/"+service+"/") }

// stateNode is the verified node behind a connection.
func stateNode(cs tls.ConnectionState) (caller, error) {
	if len(cs.VerifiedChains) == 0 {
		return caller{}, errors.New("cluster: no client certificate")
	}
	return certNode(cs.VerifiedChains[0][0])
}

// everybody's unary methods of the store: their answers hold nothing but what
// the caller sees, or what they need they check themselves.
var everybodys = []string{
	pb.Replay_CreateRun_FullMethodName, pb.Replay_Runs_FullMethodName, pb.Replay_Tenants_FullMethodName,
	pb.Shards_Shard_FullMethodName, pb.Shards_Placements_FullMethodName, pb.Shards_PlaceRun_FullMethodName,
}

// everybody's streams: they check what they are asked for.
var everybodysStreams = []string{
	pb.Replay_Append_FullMethodName, pb.Replay_Fetch_FullMethodName, pb.Replay_PutBlob_FullMethodName, pb.Replay_GetBlob_FullMethodName,
	pb.Learner_Assist_FullMethodName, pb.Policies_Get_FullMethodName,
}

// authorize says whether the caller may make a unary call. A call that names a
// run is for those who see the run's tenant; any other that is not known to be
// harmless is an operator's. Membership checks its calls itself.
func (n *Node) authorize(ctx context.Context, req any, method string) error {
	who := callerOf(ctx)
	if who.operator() || of(method, pb.Membership_ServiceDesc.ServiceName) || of(method, "grpc.health.v1.Health") || slices.Contains(everybodys, method) {
		return nil
	}
	if q, ok := req.(interface{ GetRun() string }); ok {
		return n.mayTouch(ctx, q.GetRun())
	}
	return who.mustOperate(method)
}

// authorizeStream is authorize for streams.
func authorizeStream(who caller, method string) error {
	if who.operator() || slices.Contains(everybodysStreams, method) || of(method, "grpc.health.v1.Health") {
		return nil
	}
	return who.mustOperate(method)
}

// mayTouch says whether the caller may read and change the runs. A run that is
// not there is ErrNotFound: by the time of the call it might be another tenant's.
func (n *Node) mayTouch(ctx context.Context, runs ...string) error {
	who := callerOf(ctx)
	if who.operator() || who.tenant == AllTenants {
		return nil
	}
	if err := n.mustLead(); err != nil { // only the leader knows every run
		return err
	}
	slices.Sort(runs)
	return n.store.View(func(kv replay.Reader) error {
		for _, run := range slices.Compact(runs) {
			tenant, err := replay.TenantOf(kv, run)
			if err != nil {
				return err
			}
			if !who.sees(tenant) {
				return fmt.Errorf("%w: run %q is another tenant's: %s may not touch it", ErrDenied, run, who)
			}
		}
		return nil
	})
}

// appendFor appends what the caller may. Records of a run that is not there are
// rejected, as the fold does; one of another tenant's run refuses them all.
func (n *Node) appendFor(ctx context.Context, recs []replay.Record, put func(context.Context, []replay.Record) ([]replay.AppendResult, error)) ([]replay.AppendResult, error) {
	missing := map[string]error{}
	for _, rec := range recs {
		run := rec.Item.Run
		if _, known := missing[run]; known {
			continue
		}
		err := n.mayTouch(ctx, run)
		if err != nil && !errors.Is(err, replay.ErrNotFound) {
			return nil, err
		}
		if err != nil && n.awayFrom(run) != nil {
			err = nil // the fold tells the client to send it elsewhere
		}
		missing[run] = err
	}
	all := sifted{out: make([]replay.AppendResult, len(recs))}
	for i, rec := range recs {
		if err := missing[rec.Item.Run]; err != nil {
			all.out[i].Rejected = err.Error() + " (create it first)"
			continue
		}
		all.good, all.at = append(all.good, rec), append(all.at, i)
	}
	if len(all.good) == len(recs) {
		return put(ctx, recs)
	}
	var res []replay.AppendResult
	if len(all.good) > 0 {
		var err error
		if res, err = put(ctx, all.good); err != nil && len(res) != len(all.good) {
			return nil, err
		}
	}
	out := all.merge(res)
	return out, replay.AppendError(func(i int) string { return recs[i].Item.LogID }, out)
}

// mayRead says whether the caller may read the logs.
func (n *Node) mayRead(ctx context.Context, logIDs []string) error {
	who := callerOf(ctx)
	if who.operator() || who.tenant == AllTenants {
		return nil
	}
	var runs []string
	if err := n.store.View(func(kv replay.Reader) error {
		items, err := replay.Items(kv, logIDs)
		for _, it := range items {
			runs = append(runs, it.Run)
		}
		return err
	}); err != nil {
		return err
	}
	return n.mayTouch(ctx, runs...)
}

// visibleRuns leaves the runs that the caller sees.
func (n *Node) visibleRuns(ctx context.Context, runs []string) ([]string, error) {
	who := callerOf(ctx)
	if who.operator() || who.tenant == AllTenants {
		return runs, nil
	}
	var bad error
	err := n.store.View(func(kv replay.Reader) error {
		runs = slices.DeleteFunc(runs, func(run string) bool {
			tenant, err := replay.TenantOf(kv, run)
			bad = errors.Join(bad, err)
			return err != nil || !who.sees(tenant)
		})
		return bad
	})
	return runs, err
}
