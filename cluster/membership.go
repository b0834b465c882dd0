package cluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

const maxVoters = 5 // further replay nodes hold copies and do not vote

type membershipServer struct {
	pb.UnimplementedMembershipServer
	n *Node
}

// Join signs a certificate for whoever shows the secret.
func (m *membershipServer) Join(_ context.Context, q *pb.JoinRequest) (*pb.JoinResponse, error) {
	n := m.n
	who := caller{q.GetId(), q.GetRole(), q.GetTenant()}
	shown := Token{tenant: q.GetTokenTenant(), role: q.GetTokenRole(), secret: q.GetSecret()}
	if err := n.ident.Token().admitsAs(shown, who.role, who.tenant); err != nil {
		return nil, fmt.Errorf("%w: join of %s at cluster %s: %w: copy the file %q of a replay node's directory, or ask for a new token",
			ErrDenied, who, n.ident.Cluster(), err, fileToken)
	}
	if err := checkNode(who.id, who.role); err != nil {
		return nil, fmt.Errorf("%w: join: %w", replay.ErrInvalid, err)
	}
	if q.GetRole() == RoleReplay {
		_, known := n.book.addr(q.GetId())
		if member, _ := n.isMember(q.GetId()); member || known || n.book.removed(q.GetId()) {
			return nil, fmt.Errorf("%w: join: node id %q is taken: start that node with its own directory, or choose another id",
				replay.ErrInvalid, q.GetId())
		}
	}
	pub, err := checkRequest(q.GetCsr())
	if err != nil {
		return nil, fmt.Errorf("join of %q: %w", q.GetId(), err)
	}
	cert, err := n.ident.sign(who, pub)
	if err != nil {
		return nil, err
	}
	n.log.Info("admitted", "id", who.id, "role", who.role, "tenant", who.tenant)
	resp := &pb.JoinResponse{Certificate: cert, Nodes: n.book.all()}
	if q.GetRole() == RoleReplay {
		if resp.CaKey, err = x509.MarshalECPrivateKey(n.ident.caKey); err != nil {
			return nil, err
		}
		tok, gen := n.ident.secret.get()
		resp.Token, resp.TokenGeneration = tok.Reveal(), gen
	}
	return resp, nil
}

// Heartbeat notes a process in the leader's table.
func (m *membershipServer) Heartbeat(ctx context.Context, q *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	if err := m.n.mustLead(); err != nil {
		return nil, err
	}
	info, who := infoFrom(q.GetInfo()), callerOf(ctx)
	if info.ID != who.id || info.Role != who.role {
		return nil, fmt.Errorf("%w: heartbeat of %s %q with the certificate of %s %q", ErrDenied, info.Role, info.ID, who.role, who.id)
	}
	info.Tenant = who.tenant
	if old, ok := m.n.live.get(info.Role, info.ID); ok && old.Tenant != who.tenant && time.Since(old.LastSeen) <= m.n.live.alive {
		return nil, fmt.Errorf("%w: heartbeat of %s: a process of another tenant has that id: choose another", ErrDenied, who)
	}
	if err := m.n.live.beat(NodeStatus{NodeInfo: info}, time.Now()); err != nil {
		return nil, err
	}
	return &pb.HeartbeatResponse{Nodes: m.n.book.all()}, nil
}

// ClusterStatus is answered by the leader, or by anybody when asked so.
func (m *membershipServer) ClusterStatus(ctx context.Context, q *pb.ClusterStatusRequest) (*pb.ClusterStatusResponse, error) {
	if err := m.n.mustLead(); err != nil && !q.GetStale() {
		return nil, err
	}
	s := m.n.clusterStatus()
	if who := callerOf(ctx); !who.operator() {
		s.Nodes = slices.DeleteFunc(s.Nodes, func(n NodeStatus) bool { return n.Role != RoleReplay && !who.sees(n.Tenant) })
	}
	return clusterStatusTo(s), nil
}

// RemoveNode takes a replay node out for good: an operator's business.
func (m *membershipServer) RemoveNode(ctx context.Context, q *pb.RemoveNodeRequest) (*pb.Empty, error) {
	if err := callerOf(ctx).mustOperate(fmt.Sprintf("remove node %q", q.GetId())); err != nil {
		return nil, err
	}
	return empty(m.n.removeNode(ctx, q.GetId()))
}

// Announce exchanges address books and notes how far a fellow is.
func (s *peerServer) Announce(ctx context.Context, q *pb.AnnounceRequest) (*pb.AnnounceResponse, error) {
	n, who := s.n, callerOf(ctx)
	if q.GetSelf().GetId() != who.id {
		return nil, fmt.Errorf("%w: %s announces itself as %q", ErrDenied, who.id, q.GetSelf().GetId())
	}
	n.mergeBook(append(q.GetBook(), q.GetSelf()))
	n.hearToken(q.GetToken())
	if !n.book.removed(who.id) {
		err := n.live.beat(NodeStatus{
			NodeInfo: NodeInfo{ID: who.id, Role: RoleReplay, Addr: q.GetSelf().GetAddr(), DiskFree: q.GetDiskFree(),
				Version: q.GetVersion(), Started: fromNanos(q.GetStarted())},
			Term: q.GetTerm(), Applied: q.GetApplied(), Missing: q.GetMissing(),
		}, time.Now())
		if err != nil {
			return nil, err
		}
	}
	n.hearTime(who.id, q.GetTime())
	return &pb.AnnounceResponse{Book: n.book.all(), Token: n.ident.secret.wire(), Time: n.groupTime()}, nil
}

// Heartbeat notes a process of a single-process run, for ClusterStatus.
func (n *Node) Heartbeat(_ context.Context, info NodeInfo) error {
	return n.live.beat(NodeStatus{NodeInfo: info}, time.Now())
}

// ClusterStatus is this node's view; complete on the leader. It does not fail.
func (n *Node) ClusterStatus(context.Context) (ClusterStatus, error) { return n.clusterStatus(), nil }

func (n *Node) clusterStatus() ClusterStatus {
	out := ClusterStatus{Term: n.raft.CurrentTerm(), Commit: n.raft.CommitIndex()}
	if n.ident != nil {
		out.Cluster = n.ident.Cluster()
	}
	_, leader := n.raft.LeaderWithID()
	out.Leader = string(leader)
	if out.Leader == n.id && n.ready.Load() == 0 {
		out.Leader = ""
	}
	voters, others := n.servers()
	voter := make(map[string]bool)
	for _, id := range voters {
		voter[id] = true
	}
	seen := map[process]bool{{RoleReplay, n.id}: true}
	out.Nodes = append(out.Nodes, n.status())
	for _, s := range n.live.list(time.Now()) {
		if key := (process{s.Role, s.ID}); !seen[key] && !(s.Role == RoleReplay && n.book.removed(s.ID)) {
			seen[key] = true
			out.Nodes = append(out.Nodes, s)
		}
	}
	for _, id := range append(voters, others...) { // members nobody heard of
		if !seen[process{RoleReplay, id}] {
			addr, _ := n.book.addr(id)
			out.Nodes = append(out.Nodes, NodeStatus{NodeInfo: NodeInfo{ID: id, Role: RoleReplay, Addr: addr}})
		}
	}
	for i := range out.Nodes {
		s := &out.Nodes[i]
		s.Voter, s.Leader = s.Role == RoleReplay && voter[s.ID], s.Role == RoleReplay && s.ID == out.Leader
	}
	sortNodes(out.Nodes)
	return out
}

// confMark is how far the leader had applied when it first saw a membership in
// its term.
type confMark struct {
	key     string
	applied uint64
}

// reconcile makes the raft configuration follow what nodes announce: new nodes
// come in without a vote and get it when they hold everything that was committed
// before the last change. One change a round.
//
// The configuration names nodes only: its address of a node is the node's id.
// Where a node listens is the address book's business (addressProvider), so
// that a node that moves changes nothing here; raft 1.7.3 also has a data race
// between changing a member's address and replicating to it.
//
// A majority of the new voters always meets every majority of the old; with
// everything older on the newcomer as well, no payload can end up on a minority
// however many join.
func (n *Node) reconcile(ctx context.Context) {
	if n.peers == nil {
		return
	}
	f := n.raft.GetConfiguration()
	if f.Error() != nil || ctx.Err() != nil {
		return
	}
	voters := 0
	known := make(map[string]bool)
	for _, s := range f.Configuration().Servers {
		known[string(s.ID)] = true
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	if key := fmt.Sprint(n.ready.Load(), f.Configuration().Servers); key != n.conf.key {
		n.conf = confMark{key, n.store.AppliedIndex()}
	}
	now := time.Now()
	for _, s := range f.Configuration().Servers {
		st, heard := n.live.get(RoleReplay, string(s.ID))
		if s.Suffrage == raft.Voter || voters >= maxVoters || !heard || now.Sub(st.LastSeen) > n.cfg.AliveFor {
			continue
		}
		if st.Applied >= n.conf.applied && st.Missing == 0 {
			n.promote(ctx, s)
			return
		}
	}
	for _, st := range n.live.list(now) {
		if st.Role != RoleReplay || known[st.ID] || !st.Alive || n.book.removed(st.ID) {
			continue
		}
		if going := n.removing.Load(); going != nil && *going == st.ID {
			continue
		}
		n.log.Info("node joins", "id", st.ID, "addr", st.Addr)
		n.change(ctx, func() raft.IndexFuture {
			return n.raft.AddNonvoter(raft.ServerID(st.ID), raft.ServerAddress(st.ID), 0, n.cfg.AppendTimeout)
		})
		return
	}
}

// promote gives a node its vote. Appends are held up meanwhile, so that each
// lies on one side of the change.
func (n *Node) promote(ctx context.Context, s raft.Server) {
	n.members.Lock()
	defer n.members.Unlock()
	if n.change(ctx, func() raft.IndexFuture { return n.raft.AddVoter(s.ID, s.Address, 0, n.cfg.AppendTimeout) }) == nil {
		n.log.Info("node votes", "id", string(s.ID))
	}
}

func (n *Node) change(ctx context.Context, f func() raft.IndexFuture) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.AppendTimeout)
	defer cancel()
	err := n.await(ctx, f())
	if err != nil {
		n.log.Warn("membership change", "err", err)
	}
	return err
}

func (n *Node) removeNode(ctx context.Context, id string) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	if voters, _ := n.servers(); id == n.id && len(voters) > 1 {
		// Who removes a node remembers that it did. A node that removed itself and
		// stopped would take that along, and the others would let it in again.
		if err := n.raft.LeadershipTransfer().Error(); err != nil {
			return fmt.Errorf("cluster: node %s is to be removed and finds no other leader: %w: %w", id, replay.ErrUnavailable, err)
		}
		return &notLeaderError{node: n.id}
	}
	n.members.Lock()
	defer n.members.Unlock()
	if member, _ := n.isMember(id); !member {
		return fmt.Errorf("%w: node %q is no member", replay.ErrNotFound, id)
	}
	voters, _ := n.servers()
	left, alive := 0, 0
	now := time.Now()
	for _, v := range voters {
		if v == id {
			continue
		}
		left++
		if st, ok := n.live.get(RoleReplay, v); v == n.id || ok && now.Sub(st.LastSeen) < n.cfg.AliveFor {
			alive++
		}
	}
	if alive < left/2+1 {
		return fmt.Errorf("%w: remove node %q: %d of the other %d voters are alive, no majority would be left: start more first",
			replay.ErrInvalid, id, alive, left)
	}
	n.removing.Store(&id) // its announcements must not bring it back
	defer n.removing.Store(nil)
	if err := n.await(ctx, n.raft.RemoveServer(raft.ServerID(id), 0, n.cfg.AppendTimeout)); err != nil {
		return err
	}
	return n.book.remove(id)
}
