package main

import (
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// statusView is what skein status --json prints. Run is absent while there is
// none, cluster while no node is running. Run is a *runView, or for a training on
// files a project.RowsStatus: run, finished, step, metrics and config are in both.
type statusView struct {
	Run     any          `json:"run,omitempty"`
	Cluster *clusterView `json:"cluster,omitempty"`
}

type runView struct {
	Run            string             `json:"run"`
	Finished       bool               `json:"finished"`
	Step           uint64             `json:"step"`
	PolicyVersion  uint64             `json:"policy_version"`
	Adapter        string             `json:"adapter,omitempty"`
	Base           string             `json:"base"`
	Committed      *time.Time         `json:"committed,omitempty"` // the last step
	Metrics        map[string]float64 `json:"metrics,omitempty"`   // of the last step
	RunningGroups  int                `json:"running_groups"`
	ReadyGroups    int                `json:"ready_groups"`
	LeasedGroups   int                `json:"leased_groups"`
	TrainedGroups  int                `json:"trained_groups"`
	DroppedGroups  int                `json:"dropped_groups"`
	Rollouts       int                `json:"rollouts"`
	FailedRollouts int                `json:"failed_rollouts"`
	Duplicates     int                `json:"duplicates"`
	Failures       map[string]int     `json:"failures,omitempty"`
	Drops          map[string]int     `json:"drops,omitempty"`
	Staleness      map[uint64]int     `json:"staleness,omitempty"` // trained rollouts by age in versions
	Config         string             `json:"config"`              // resolved, YAML
}

func viewRun(s replay.RunStatus) *runView {
	v := &runView{
		Run: s.Spec.Run, Finished: s.Finished, PolicyVersion: s.Latest.Version, Adapter: s.Latest.Adapter, Base: s.Spec.BaseDigest,
		RunningGroups: s.RunningGroups, ReadyGroups: s.ReadyGroups, LeasedGroups: s.LeasedGroups, TrainedGroups: s.ConsumedGroups,
		DroppedGroups: s.DroppedGroups, Rollouts: s.Appended, FailedRollouts: s.FailedRollouts, Duplicates: s.Duplicates,
		Failures: s.FailureReasons, Drops: s.DropReasons, Staleness: s.StalenessCounts, Config: string(s.Spec.Config),
	}
	if l := s.LastStep; l != nil {
		v.Step, v.Committed, v.Metrics = l.Step, &l.Committed, l.Metrics
	}
	return v
}

type clusterView struct {
	Cluster string     `json:"cluster"`
	Leader  string     `json:"leader"`
	Term    uint64     `json:"term"`
	Nodes   []nodeView `json:"nodes"`
}

type nodeView struct {
	ID              string             `json:"id"`
	Role            string             `json:"role"`
	Address         string             `json:"address,omitempty"`
	Alive           bool               `json:"alive"`
	Leader          bool               `json:"leader"`
	Voter           bool               `json:"voter"`
	PolicyVersion   uint64             `json:"policy_version"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	DiskFree        uint64             `json:"disk_free,omitempty"` // bytes
	Missing         uint64             `json:"missing_logs"`
	LastError       string             `json:"last_error,omitempty"`
	Version         string             `json:"version"`
	Started         time.Time          `json:"started"`
	LastSeen        time.Time          `json:"last_seen"`
	Run             string             `json:"run,omitempty"`    // of a worker: all it serves
	Tenant          string             `json:"tenant,omitempty"` // "" = the default one
	Metrics         map[string]float64 `json:"metrics,omitempty"`
}

func viewCluster(c cluster.ClusterStatus) *clusterView {
	v := &clusterView{Cluster: c.Cluster, Leader: c.Leader, Term: c.Term, Nodes: []nodeView{}}
	for _, n := range c.Nodes {
		v.Nodes = append(v.Nodes, nodeView{
			ID: n.ID, Role: n.Role, Address: n.Addr, Alive: n.Alive, Leader: n.Leader, Voter: n.Voter, PolicyVersion: n.PolicyVersion,
			TokensPerSecond: n.TokensPerSecond, DiskFree: n.DiskFree, Missing: n.Missing, LastError: n.LastError, Version: n.Version,
			Started: n.Started, LastSeen: n.LastSeen, Metrics: n.Metrics, Run: n.Run, Tenant: n.Tenant,
		})
	}
	return v
}

// logView is one line of skein log tail --json.
type logView struct {
	ID         string    `json:"id"`
	Table      string    `json:"table"`
	Group      string    `json:"group"`
	Member     uint32    `json:"member"`
	Task       string    `json:"task"`
	Worker     string    `json:"worker"`
	Status     string    `json:"status"`
	Cause      string    `json:"cause,omitempty"`
	Reward     *float64  `json:"reward"` // null when there is none
	Tokens     uint32    `json:"tokens"` // sampled
	MinVersion uint64    `json:"min_version"`
	MaxVersion uint64    `json:"max_version"`
	Digest     string    `json:"digest"`
	Bytes      uint32    `json:"bytes"`
	Created    time.Time `json:"created"`
}

func viewLog(it replay.Item) logView {
	v := logView{
		ID: it.LogID, Table: it.Table, Group: it.Group, Member: it.Member, Task: it.Source + "/" + it.Task, Worker: it.Worker,
		Status: eventlog.Status(it.Status).String(), Cause: it.Cause, Tokens: it.Tokens, MinVersion: it.MinVersion, MaxVersion: it.MaxVersion,
		Digest: it.Digest, Bytes: it.Size, Created: it.Created,
	}
	if it.HasReward {
		v.Reward = &it.Reward
	}
	return v
}
