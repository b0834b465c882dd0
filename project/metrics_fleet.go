package project

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// The leading replay node tells of the whole fleet and of every run, so that one
// scrape target has what a dashboard and an autoscaler need.
var (
	descNodes     = desc("cluster_nodes", "Processes that the leader hears of, by role; alive is 0 for those that fell silent.", "role", "alive")
	descNodeRate  = desc("cluster_node_tokens_per_second", "Tokens a second that a worker samples, by its last heartbeat.", "node")
	descNodeServe = desc("cluster_node_policy_version", "Policy version that a worker serves, by its last heartbeat.", "node", "run")

	descRunGroups = desc("run_groups", "Groups of a run by state: running (dispatched, incomplete), ready, leased, and open: how many may be rolled out "+
		"now, dispatched or not. open is the demand for workers: it falls to 0 while the learner is the bottleneck.", "run", "state")
	descRunEnded    = desc("run_groups_total", "Groups of a run that ended, by result: trained or dropped.", "run", "result")
	descRunLogs     = desc("run_logs_total", "EventLogs of a run, by result: appended, failed (part of appended), duplicate or rejected.", "run", "result")
	descRunVersion  = desc("run_policy_version", "Newest policy version of a run.", "run")
	descRunStep     = desc("run_step", "Last committed step of a run.", "run")
	descRunStale    = desc("run_trained_logs_total", "EventLogs trained, by age in policy versions.", "run", "staleness")
	descRunFinished = desc("run_finished", "1 when a run is finished.", "run")

	fleetDescs = []*prometheus.Desc{descNodes, descNodeRate, descNodeServe,
		descRunGroups, descRunEnded, descRunLogs, descRunVersion, descRunStep, descRunStale, descRunFinished}
)

func emitFleet(emit emit, s cluster.ClusterStatus) {
	type kind struct{ role, alive string }
	count := map[kind]int{}
	for _, n := range s.Nodes {
		alive := "0"
		if n.Alive {
			alive = "1"
		}
		count[kind{n.Role, alive}]++
		if n.Role == cluster.RoleWorker && n.Alive {
			emit(descNodeRate, prometheus.GaugeValue, n.TokensPerSecond, n.ID)
			emit(descNodeServe, prometheus.GaugeValue, float64(n.PolicyVersion), n.ID, n.Run)
		}
	}
	for k, n := range count {
		emit(descNodes, prometheus.GaugeValue, float64(n), k.role, k.alive)
	}
}

// emitRuns reads the fold; on a node that stopped leading meanwhile there is
// nothing to tell.
func emitRuns(emit emit, st replay.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout/2)
	defer cancel()
	runs, err := st.Runs(ctx)
	if err != nil {
		return
	}
	for _, run := range runs {
		if s, err := st.Status(ctx, run); err == nil {
			emitRun(emit, run, s)
		}
	}
}

func emitRun(emit emit, run string, s replay.RunStatus) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		emit(d, prometheus.GaugeValue, v, append([]string{run}, labels...)...)
	}
	count := func(d *prometheus.Desc, v int, labels ...string) {
		emit(d, prometheus.CounterValue, float64(v), append([]string{run}, labels...)...)
	}
	gauge(descRunGroups, float64(s.RunningGroups), "running")
	gauge(descRunGroups, float64(s.ReadyGroups), "ready")
	gauge(descRunGroups, float64(s.LeasedGroups), "leased")
	gauge(descRunGroups, float64(openGroups(s)), "open")
	count(descRunEnded, s.ConsumedGroups, "trained")
	count(descRunEnded, s.DroppedGroups, "dropped")
	count(descRunLogs, s.Appended, "appended")
	count(descRunLogs, s.FailedRollouts, "failed")
	count(descRunLogs, s.Duplicates, "duplicate")
	count(descRunLogs, s.RejectedLogs, "rejected")
	gauge(descRunVersion, float64(s.Latest.Version))
	if s.LastStep != nil {
		gauge(descRunStep, float64(s.LastStep.Step))
	}
	for age, n := range s.StalenessCounts {
		count(descRunStale, n, strconv.FormatUint(age, 10))
	}
	finished := 0.0
	if s.Finished {
		finished = 1
	}
	gauge(descRunFinished, finished)
}

// openGroups is how many groups of a run may be on their way from the workers:
// the bound of the fold's dispatch less what waits for the learner or is with
// it.
func openGroups(s replay.RunStatus) int {
	if s.Finished {
		return 0
	}
	return max(0, int(s.Spec.Capacity())-s.ReadyGroups-s.LeasedGroups)
}
