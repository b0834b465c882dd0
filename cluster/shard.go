package cluster

import (
	"context"
	"fmt"
	"strings"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// A shard is a raft group with nodes of its own, under the authority of its
// cluster. Its name is part of the group's name in certificates, "NAME.RANDOM";
// the first group of a cluster, the root, has none.

// groupName is the name in certificates of a shard's raft group.
func groupName(shard, random string) string {
	if shard == "" {
		return random
	}
	return shard + "." + random
}

// shardOf is the shard of a raft group.
func shardOf(group string) string {
	if name, _, ok := strings.Cut(group, "."); ok {
		return name
	}
	return replay.RootShard
}

// ShardInfo is what a raft group says of itself.
type ShardInfo struct {
	Name       string
	Group      string       // the raft group's name in certificates
	Root       replay.Shard // of a shard: the root it was registered with; Version 0 = none
	Runs       int          // that live there
	Unfinished int          // of them
	DiskFree   uint64       // bytes, the least of its nodes'; 0 = not measured
}

// shard is the node's own; a single process is the root.
func (n *Node) shard() string {
	if n.ident == nil {
		return replay.RootShard
	}
	return shardOf(n.ident.group)
}

// awayFrom is replay.ErrMoved of a run that is not here but in another shard.
func (n *Node) awayFrom(run string) error {
	return n.store.View(func(kv replay.Reader) error { return replay.Elsewhere(kv, run) })
}

// elsewhere is awayFrom for the run that a call names. Only the leader knows; on
// another node the call itself says so.
func (n *Node) elsewhere(req any) error {
	q, ok := req.(interface{ GetRun() string })
	if !ok || n.mustLead() != nil {
		return nil
	}
	return n.awayFrom(q.GetRun())
}

// root is the root a shard was registered with; Version 0 = none.
func (n *Node) root() (root replay.Shard, err error) {
	err = n.store.View(func(kv replay.Reader) error {
		all, err := replay.Shards(kv)
		for _, s := range all {
			if s.Name == replay.RootShard {
				root = s
			}
		}
		return err
	})
	return root, err
}

// mustBeRegistered refuses runs on a shard that no root knows of.
func (n *Node) mustBeRegistered() error {
	if n.shard() == replay.RootShard {
		return nil
	}
	root, err := n.root()
	if err == nil && root.Version == 0 {
		err = fmt.Errorf("%w: shard %q is not part of a cluster yet: skein cluster shard add %s", replay.ErrInvalid, n.shard(), n.shard())
	}
	return err
}

// mustBeRoot refuses what only the root decides.
func (n *Node) mustBeRoot(what string) error {
	if s := n.shard(); s != replay.RootShard {
		return fmt.Errorf("%w: %s: shard %q does not decide that, the root does", replay.ErrInvalid, what, s)
	}
	return nil
}

// shardsServer serves routers and operators.
type shardsServer struct {
	pb.UnimplementedShardsServer
	n *Node
}

// Shard is answered by any node: a client asks before it knows a leader.
func (s *shardsServer) Shard(context.Context, *pb.Empty) (*pb.ShardInfo, error) {
	n := s.n
	root, err := n.root()
	if err != nil {
		return nil, err
	}
	out := &pb.ShardInfo{Name: n.shard(), Group: n.ident.group, Root: shardTo(root)}
	if err := n.store.View(func(kv replay.Reader) error {
		all, unfinished, err := replay.CountRuns(kv)
		out.Runs, out.Unfinished = uint32(all), uint32(unfinished)
		return err
	}); err != nil {
		return nil, err
	}
	for _, st := range n.clusterStatus().Nodes {
		if st.Role == RoleReplay && st.DiskFree > 0 && (out.DiskFree == 0 || st.DiskFree < out.DiskFree) {
			out.DiskFree = st.DiskFree
		}
	}
	return out, nil
}

func (s *shardsServer) Placements(ctx context.Context, q *pb.PlacementsRequest) (*pb.PlacementsResponse, error) {
	if err := s.n.mustBeRoot("placements"); err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	out := new(pb.PlacementsResponse)
	return out, s.n.view(ctx, func(kv replay.Reader) error {
		shards, err := replay.Shards(kv)
		if err != nil {
			return err
		}
		out.Shards = mapSlice(shards, shardTo)
		var all []replay.Placement
		if q.GetName() == "" {
			all, err = replay.Placements(kv)
		} else if p, perr := replay.PlacementOf(kv, q.GetName()); perr != nil || p.Version > 0 {
			all, err = []replay.Placement{p}, perr
		}
		for _, p := range all {
			if who.sees(p.Tenant) {
				out.Placements = append(out.Placements, placementTo(p))
			}
		}
		return err
	})
}

func (s *shardsServer) SetShard(ctx context.Context, q *pb.ShardEntry) (*pb.ShardEntry, error) {
	if err := callerOf(ctx).mustOperate("register shard " + q.GetName()); err != nil {
		return nil, err
	}
	if self := s.n.shard(); (self == replay.RootShard) == (q.GetName() == replay.RootShard) {
		return nil, fmt.Errorf("%w: shard %q cannot be registered in shard %q", replay.ErrInvalid, q.GetName(), self)
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	res, err := s.n.propose(ctx, replay.SetShardCmd{Now: s.n.now(), Shard: shardFrom(q)})
	return shardTo(res.Shard), err
}

// PlaceRun lets whoever may create a run place it for the first time.
func (s *shardsServer) PlaceRun(ctx context.Context, q *pb.Placement) (*pb.Placement, error) {
	if err := s.n.mustBeRoot("placing a run"); err != nil {
		return nil, err
	}
	p, who := placementFrom(q), callerOf(ctx)
	if !who.operator() {
		if p.Version != 0 || p.Phase != replay.PlaceAtRest || who.tenant == AllTenants {
			return nil, who.mustOperate(fmt.Sprintf("move run %q", p.Run))
		}
		p.Tenant = who.tenant
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	res, err := s.n.propose(ctx, replay.PlaceRunCmd{Now: s.n.now(), Placement: p})
	if err == nil && !who.sees(res.Placement.Tenant) {
		return nil, fmt.Errorf("%w: run %q is another tenant's: %s may not touch it", ErrDenied, p.Run, who)
	}
	return placementTo(res.Placement), err
}

func shardTo(s replay.Shard) *pb.ShardEntry {
	return &pb.ShardEntry{Name: s.Name, Group: s.Group, Addrs: s.Addrs, Version: s.Version, Set: nanos(s.Set)}
}

func shardFrom(m *pb.ShardEntry) replay.Shard {
	return replay.Shard{Name: m.GetName(), Group: m.GetGroup(), Addrs: m.GetAddrs(), Version: m.GetVersion(), Set: fromNanos(m.GetSet())}
}

func placementTo(p replay.Placement) *pb.Placement {
	return &pb.Placement{Name: p.Run, Tenant: p.Tenant, Shard: p.Shard, To: p.To, Phase: uint32(p.Phase), Version: p.Version, Set: nanos(p.Set)}
}

func placementFrom(m *pb.Placement) replay.Placement {
	return replay.Placement{Run: m.GetName(), Tenant: m.GetTenant(), Shard: m.GetShard(), To: m.GetTo(),
		Phase: replay.PlacePhase(m.GetPhase()), Version: m.GetVersion(), Set: fromNanos(m.GetSet())}
}
