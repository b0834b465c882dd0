package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// NodeInfo is what a process tells about itself in a heartbeat. ID and Role
// must be those of its certificate.
type NodeInfo struct {
	ID              string
	Role            string
	Addr            string  // where it listens, "" = nowhere
	PolicyVersion   uint64  // the version it serves or trains
	TokensPerSecond float64 // generated or trained
	DiskFree        uint64  // bytes, 0 = not measured
	LastError       string  // newest failure, "" = none
	Version         string  // of the software
	Started         time.Time
	Metrics         map[string]float64 // free, for display
	Run             string             // learners: the run worked on, "" = none
	Leads           bool               // learners: it trains the run; others of the run help
	Tenant          string             // by its certificate; "" = the default one
}

// NodeStatus is a process as the leader sees it.
type NodeStatus struct {
	NodeInfo
	Alive    bool
	Leader   bool
	Voter    bool
	LastSeen time.Time
	// Replay nodes only:
	Term    uint64
	Applied uint64 // raft index
	Missing uint64 // committed payloads it still has to pull
}

// ClusterStatus lists every process the leader heard of since it leads, and
// every replay node. Asked of a node that is not the leader it is that node's
// view: Leader is then "" when it knows none.
type ClusterStatus struct {
	Cluster string // short fingerprint of the authority; "" in one process
	Leader  string // node id
	Term    uint64
	Commit  uint64 // raft index
	Nodes   []NodeStatus
}

const maxProcesses = 4096 // entries of the liveness table

// liveness remembers heartbeats. It lives in the leader's memory only: a new
// leader hears from everybody within a heartbeat.
type liveness struct {
	alive time.Duration

	mu sync.Mutex
	m  map[process]NodeStatus
}

// process names an entry: one id may play several roles, in one process or more.
type process struct{ role, id string }

func newLiveness(alive time.Duration) *liveness {
	return &liveness{alive: alive, m: make(map[process]NodeStatus)}
}

// beat records a heartbeat. Entries long silent make room when the table is
// full. Of two living processes with one id the later start counts: a restart
// is heard at once, and the other one is told.
func (l *liveness) beat(s NodeStatus, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := process{s.Role, s.ID}
	old, ok := l.m[key]
	if ok && old.Started.After(s.Started) && now.Sub(old.LastSeen) <= l.alive {
		return fmt.Errorf("%w: heartbeat of %s %s started %s: a process with this id started %s and is alive: stop one of them, or give it an id of its own",
			replay.ErrInvalid, s.Role, s.ID, s.Started.Format(time.DateTime), old.Started.Format(time.DateTime))
	}
	if !ok && len(l.m) >= maxProcesses {
		maps.DeleteFunc(l.m, func(_ process, o NodeStatus) bool { return now.Sub(o.LastSeen) > 10*l.alive })
		if len(l.m) >= maxProcesses {
			return fmt.Errorf("%w: heartbeat of %s: more than %d processes", replay.ErrInvalid, s.ID, maxProcesses)
		}
	}
	s.LastSeen = now
	l.m[key] = s
	return nil
}

func (l *liveness) get(role, id string) (NodeStatus, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.m[process{role, id}]
	return s, ok
}

// list returns the table by role and id, with Alive judged at now.
func (l *liveness) list(now time.Time) []NodeStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]NodeStatus, 0, len(l.m))
	for _, s := range l.m {
		s.Alive = now.Sub(s.LastSeen) <= l.alive
		out = append(out, s)
	}
	sortNodes(out)
	return out
}

func sortNodes(nodes []NodeStatus) {
	slices.SortFunc(nodes, func(a, b NodeStatus) int {
		if a.Role != b.Role {
			return roleRank(a.Role) - roleRank(b.Role)
		}
		return strings.Compare(a.ID, b.ID)
	})
}

func roleRank(r string) int {
	return slices.Index([]string{RoleReplay, RoleLearner, RoleWorker, RoleClient}, r)
}

func infoTo(i NodeInfo) *pb.NodeInfo {
	return &pb.NodeInfo{
		Id: i.ID, Role: i.Role, Addr: i.Addr, PolicyVersion: i.PolicyVersion, TokensPerSecond: i.TokensPerSecond,
		DiskFree: i.DiskFree, LastError: i.LastError, Version: i.Version, Started: nanos(i.Started), Metrics: i.Metrics,
		Run: i.Run, Leads: i.Leads, Tenant: i.Tenant,
	}
}

func infoFrom(i *pb.NodeInfo) NodeInfo {
	return NodeInfo{
		ID: i.GetId(), Role: i.GetRole(), Addr: i.GetAddr(), PolicyVersion: i.GetPolicyVersion(),
		TokensPerSecond: i.GetTokensPerSecond(), DiskFree: i.GetDiskFree(), LastError: i.GetLastError(),
		Version: i.GetVersion(), Started: fromNanos(i.GetStarted()), Metrics: i.GetMetrics(),
		Run: i.GetRun(), Leads: i.GetLeads(), Tenant: i.GetTenant(),
	}
}

func nodeStatusTo(s NodeStatus) *pb.NodeStatus {
	return &pb.NodeStatus{
		Info: infoTo(s.NodeInfo), Alive: s.Alive, Leader: s.Leader, Voter: s.Voter, LastSeen: nanos(s.LastSeen),
		Term: s.Term, Applied: s.Applied, Missing: s.Missing,
	}
}

func nodeStatusFrom(s *pb.NodeStatus) NodeStatus {
	return NodeStatus{
		NodeInfo: infoFrom(s.GetInfo()), Alive: s.GetAlive(), Leader: s.GetLeader(), Voter: s.GetVoter(),
		LastSeen: fromNanos(s.GetLastSeen()), Term: s.GetTerm(), Applied: s.GetApplied(), Missing: s.GetMissing(),
	}
}

func clusterStatusTo(s ClusterStatus) *pb.ClusterStatusResponse {
	return &pb.ClusterStatusResponse{
		Cluster: s.Cluster, Leader: s.Leader, Term: s.Term, Commit: s.Commit, Nodes: mapSlice(s.Nodes, nodeStatusTo),
	}
}

func clusterStatusFrom(s *pb.ClusterStatusResponse) ClusterStatus {
	return ClusterStatus{
		Cluster: s.GetCluster(), Leader: s.GetLeader(), Term: s.GetTerm(), Commit: s.GetCommit(),
		Nodes: mapSlice(s.GetNodes(), nodeStatusFrom),
	}
}
