package project

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// snapshot is a collector that reads its numbers when it is asked for them.
type snapshot struct {
	descs []*prometheus.Desc
	read  func(emit emit)
}

// emit hands one number to the scrape.
type emit func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string)

// Describe implements prometheus.Collector.
func (s snapshot) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A panic while reading becomes an
// error of the scrape: it runs on the registry's goroutine, where it would end
// the process.
func (s snapshot) Collect(ch chan<- prometheus.Metric) {
	defer func() {
		if r := recover(); r != nil {
			ch <- prometheus.NewInvalidMetric(s.descs[0], fmt.Errorf("project: reading the metrics: %v", r))
		}
	}()
	s.read(func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("skein_"+name, help, labels, nil)
}

// statusNode is a replay node, as metrics see it.
type statusNode interface {
	ID() string
	ClusterStatus(context.Context) (cluster.ClusterStatus, error)
	Store() replay.Store
}

// nodeMetrics tell about the replay node of this process. Whether it leads,
// and what it appended, its own room counts.
type nodeMetrics struct {
	mu   sync.Mutex
	node statusNode // nil while none is open
}

var (
	descTerm    = desc("cluster_term", "Raft term this node is in.")
	descCommit  = desc("cluster_commit_index", "Raft index up to which this node knows entries to be committed.")
	descApplied = desc("cluster_applied_index", "Raft index up to which this node has applied entries, as it last told its peers.")
	descMissing = desc("cluster_missing_payloads", "Committed EventLogs this node still has to pull from its peers.")
)

// replayNode names the node to tell about; nil, before it is closed, forgets
// it and waits for a scrape that reads it.
func (m *metrics) replayNode(n statusNode) {
	if m == nil {
		return
	}
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	m.node.node = n
}

func (n *nodeMetrics) collector() prometheus.Collector {
	descs := append([]*prometheus.Desc{descTerm, descCommit, descApplied, descMissing}, fleetDescs...)
	return snapshot{descs, func(emit emit) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.node == nil {
			return
		}
		s, err := n.node.ClusterStatus(context.Background()) // of this node: from memory
		if err != nil {
			return
		}
		emit(descTerm, prometheus.GaugeValue, float64(s.Term))
		emit(descCommit, prometheus.GaugeValue, float64(s.Commit))
		for _, node := range s.Nodes {
			if node.ID == n.node.ID() {
				emit(descApplied, prometheus.GaugeValue, float64(node.Applied))
				emit(descMissing, prometheus.GaugeValue, float64(node.Missing))
			}
		}
		if s.Leader == n.node.ID() {
			emitFleet(emit, s)
			emitRuns(emit, n.node.Store())
		}
	}}
}

// workerMetrics add up what the workers of this process did: a worker's own
// counts end with its run.
type workerMetrics struct {
	mu   sync.Mutex
	read []*func() rollout.Heartbeat // of the workers at work
	any  bool                        // this process has had a worker
	past workerCounts                // of workers that ended
}

type workerCounts struct {
	tokens, completed, failed, appended, duplicate, rejected, lost uint64
}

func (c *workerCounts) add(h rollout.Heartbeat) {
	c.tokens += h.Engine.Generated
	c.completed += h.Rollouts - h.Failed
	c.failed += h.Failed
	c.appended += h.Appended
	c.duplicate += h.Duplicates
	c.rejected += h.Rejected
	c.lost += h.Lost
}

var (
	descTokens   = desc("worker_tokens_total", "Tokens sampled. Tokens per second: rate() of it.")
	descRollouts = desc("worker_rollouts_total", "Rollouts ended, by status: completed (cut off at a limit included) or failed (timed out included).", "status")
	descAppends  = desc("worker_logs_total", "EventLogs offered to the store, by result: appended, duplicate, rejected, or lost (given up).", "result")
	descServed   = desc("worker_policy_version", "Policy version the worker samples from; of several runs the highest.")
	descInFlight = desc("worker_rollouts_in_flight", "Rollouts going on.")
	workerDescs  = []*prometheus.Desc{descTokens, descRollouts, descAppends, descServed, descInFlight}
)

// working has the metrics read a worker until the returned function is called.
func (m *metrics) working(read func() rollout.Heartbeat) (done func()) {
	if m == nil {
		return func() {}
	}
	w := &m.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read, w.any = append(w.read, &read), true
	return func() {
		last := read()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.past.add(last)
		w.read = slices.DeleteFunc(w.read, func(f *func() rollout.Heartbeat) bool { return f == &read })
	}
}

func (w *workerMetrics) collector() prometheus.Collector {
	return snapshot{workerDescs, func(emit emit) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.any {
			return
		}
		c, inFlight, newest := w.past, 0, uint64(0)
		for _, read := range w.read {
			h := (*read)()
			c.add(h)
			inFlight += h.Members
			newest = max(newest, h.Version)
		}
		if len(w.read) > 0 {
			emit(descServed, prometheus.GaugeValue, float64(newest))
		}
		emit(descInFlight, prometheus.GaugeValue, float64(inFlight))
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			emit(d, prometheus.CounterValue, float64(n), labels...)
		}
		count(descTokens, c.tokens)
		count(descRollouts, c.completed, "completed")
		count(descRollouts, c.failed, "failed")
		count(descAppends, c.appended, "appended")
		count(descAppends, c.duplicate, "duplicate")
		count(descAppends, c.rejected, "rejected")
		count(descAppends, c.lost, "lost")
	}}
}

// learnerMetrics remember the learner's last committed step.
type learnerMetrics struct {
	mu            sync.Mutex
	any           bool // this process has had a learner
	step, version uint64
	last          map[string]float64 // of the last step in this process
	empty, lost   uint64
	epoch         float64            // of a training on rows
	evals         map[string]float64 // its last evaluation
	reporting     reporting          // of the learner at work; nil = none
}

// reporting is what writes steps to files.
type reporting interface {
	active() []string // kinds of warnings that hold
	appenders() []*appender
}

var (
	descStep    = desc("learner_step", "Last committed step.")
	descTrained = desc("learner_policy_version", "Policy version of the last committed step.")
	descEmpty   = desc("learner_empty_batches_total", "Batches with nothing to train, dropped.")
	descLost    = desc("learner_lost_leases_total", "Steps dropped because the lease was lost or another learner committed first.")
)

// stepGauges show the last step's metrics (StepRecord.Metrics) under these
// names; one that the loss does not compute is absent.
var stepGauges = []struct {
	key  string
	desc *prometheus.Desc
}{
	{"reward", desc("learner_reward", "Mean reward of the last step's rollouts.")},
	{"loss", desc("learner_loss", "Loss of the last step.")},
	{"kl", desc("learner_kl", "Mean KL divergence from the reference in the last step, in nats a token.")},
	{"entropy", desc("learner_entropy", "Mean policy entropy of the last step, in nats a token.")},
	{"grad_norm", desc("learner_grad_norm", "Gradient norm of the last step, before clipping.")},
	{"staleness/mean", desc("learner_staleness_versions", "Mean age of the last step's tokens, in policy versions.")},
	{"logprob_gap/mean_abs", desc("learner_logprob_gap", "Mean absolute difference of the sampler's and the learner's log-probabilities in the last step, in nats.")},
	{"num_tokens", desc("learner_tokens", "Tokens the last step trained on.")},
	{"reward_std", desc("learner_reward_std", "Mean deviation of rewards within the last step's groups.")},
	{"frac_reward_zero_std", desc("learner_constant_groups_ratio", "Share of the last step's groups whose rewards are all equal.")},
	{"advantage/std", desc("learner_advantage_std", "Deviation of the last step's advantages.")},
	{"clip_ratio/region_mean", desc("learner_clipped_ratio", "Share of the last step's tokens, or rollouts, outside the clip range.")},
	{"logprob_gap/k3", desc("learner_engine_kl", "Estimate of the KL divergence of the sampler from the learner in the last step, in nats a token.")},
	{"completions/mean_length", desc("learner_completion_tokens", "Mean tokens of the last step's completions.")},
	{"completions/clipped_ratio", desc("learner_truncated_ratio", "Share of the last step's completions that were cut off.")},
	{"tools/call_frequency", desc("learner_tool_calls", "Mean tool calls of the last step's rollouts.")},
	{"tools/failure_frequency", desc("learner_tool_failures_ratio", "Share of the last step's tool calls whose result is an error.")},
	{"time/tokens_per_second", desc("learner_tokens_per_second", "Tokens the last step trained on (of rows: computed), by its time.")},
	{"learning_rate", desc("learner_learning_rate", "Learning rate of the last step.")},
	{"rows", desc("learner_rows", "Rows of the last step.")},
	{"rewards/chosen", desc("learner_chosen_reward", "Mean implicit reward of the last step's chosen, or desirable, completions.")},
	{"rewards/rejected", desc("learner_rejected_reward", "Mean implicit reward of the last step's rejected, or undesirable, completions.")},
	{"rewards/accuracies", desc("learner_preference_accuracy_ratio", "Share of the last step's pairs whose chosen completion has the higher implicit reward.")},
	{"accuracy", desc("learner_reward_accuracy_ratio", "Share of the last step's pairs whose chosen completion the reward model scores higher.")},
	{"margin", desc("learner_reward_margin", "Mean difference of the reward model's scores of the last step's pairs.")},
}

// familyGauges show several of the last step's metrics under one name and a
// label; the number of values of each label is bounded.
var familyGauges = []struct {
	prefix, suffix string // of the metric; what is between is the label's value
	desc           *prometheus.Desc
}{
	{"logprob_gap/p", "", desc("learner_logprob_gap_percentile", "Percentiles of the absolute difference of the sampler's and the learner's log-probabilities in the last step, in nats.", "percentile")},
	{"engine_ratio/p", "", desc("learner_engine_ratio_percentile", "Percentiles of the probability ratio of learner and sampler in the last step.", "percentile")},
	{"time/", "_s", desc("learner_step_seconds", "Time of the last step by part; step is the whole without wait and fetch.", "part")},
	{"rewards/", "/mean", desc("learner_reward_component", "Mean of each reward component of the last step's rollouts.", "component")},
}

var (
	descEpoch   = desc("learner_epoch", "Epochs trained, the running one by its share; of trainings on rows.")
	descEval    = desc("learner_eval", "Metrics of the last evaluation on held-out rows, such as loss.", "metric")
	descWarning = desc("learner_warning", "1 while the condition of an early warning holds.", "kind")
	descRecords = desc("learner_metric_records_total", "Step records offered to metrics files, by file and result: written, dropped, or failed attempts.", "file", "result")
)

// recording has the metrics tell of what writes steps to files until the returned
// function is called.
func (m *metrics) recording(r reporting) (done func()) {
	if m == nil {
		return func() {}
	}
	m.learner.note(func() { m.learner.reporting = r })
	return func() { m.learner.note(func() { m.learner.reporting = nil }) }
}

// rowsBegin, rowsStep and rowsEval tell of a training on rows.
func (m *metrics) rowsBegin(step uint64) {
	if m != nil {
		m.learner.note(func() { m.learner.any, m.learner.step, m.learner.version = true, step, step })
	}
}

func (m *metrics) rowsStep(s learner.OfflineStep) {
	if m != nil {
		l := &m.learner
		l.note(func() { l.step, l.version, l.epoch, l.last = s.Step, s.Step, s.Epoch, maps.Clone(s.Metrics) })
	}
}

func (m *metrics) rowsEval(e learner.OfflineEval) {
	if m != nil {
		m.learner.note(func() { m.learner.epoch, m.learner.evals = e.Epoch, maps.Clone(e.Metrics) })
	}
}

// learning adds the metrics to a learner's hooks.
func (m *metrics) learning(h learner.Hooks) learner.Hooks {
	if m == nil {
		return h
	}
	l := &m.learner
	l.note(func() { l.any = true })
	start, step, empty, lost := h.OnStart, h.OnStep, h.OnEmpty, h.OnLost
	h.OnStart = func(n, version uint64, resumed bool) {
		l.note(func() { l.step, l.version = n, version })
		if start != nil {
			start(n, version, resumed)
		}
	}
	h.OnStep = func(rec replay.StepRecord, res learner.StepResult, ckpt *learner.Checkpoint) {
		l.note(func() { l.step, l.version, l.last = rec.Step, rec.Version, maps.Clone(rec.Metrics) })
		if step != nil {
			step(rec, res, ckpt)
		}
	}
	h.OnEmpty = func(consecutive int, reasons map[string]int) {
		l.note(func() { l.empty++ })
		if empty != nil {
			empty(consecutive, reasons)
		}
	}
	h.OnLost = func(err error, n uint64) {
		l.note(func() { l.lost++ })
		if lost != nil {
			lost(err, n)
		}
	}
	return h
}

func (l *learnerMetrics) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *learnerMetrics) collector() prometheus.Collector {
	descs := []*prometheus.Desc{descStep, descTrained, descEmpty, descLost}
	for _, g := range stepGauges {
		descs = append(descs, g.desc)
	}
	for _, g := range familyGauges {
		descs = append(descs, g.desc)
	}
	descs = append(descs, descEpoch, descEval, descWarning, descRecords)
	return snapshot{descs, func(emit emit) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.any {
			return
		}
		emit(descStep, prometheus.GaugeValue, float64(l.step))
		emit(descTrained, prometheus.GaugeValue, float64(l.version))
		emit(descEmpty, prometheus.CounterValue, float64(l.empty))
		emit(descLost, prometheus.CounterValue, float64(l.lost))
		for _, g := range stepGauges {
			if v, ok := l.last[g.key]; ok {
				emit(g.desc, prometheus.GaugeValue, v)
			}
		}
		for _, g := range familyGauges {
			for key, v := range l.last {
				label, ok := strings.CutPrefix(key, g.prefix)
				if ok {
					label, ok = strings.CutSuffix(label, g.suffix)
				}
				if ok && label != "" {
					emit(g.desc, prometheus.GaugeValue, v, label)
				}
			}
		}
		if l.epoch > 0 {
			emit(descEpoch, prometheus.GaugeValue, l.epoch)
		}
		for key, v := range l.evals {
			if name, ok := strings.CutPrefix(key, "eval_"); ok {
				emit(descEval, prometheus.GaugeValue, v, name)
			}
		}
		if l.reporting == nil {
			return
		}
		active := l.reporting.active()
		for _, kind := range watch.Kinds() {
			on := 0.0
			if slices.Contains(active, kind) {
				on = 1
			}
			emit(descWarning, prometheus.GaugeValue, on, kind)
		}
		for _, a := range l.reporting.appenders() {
			emit(descRecords, prometheus.CounterValue, float64(a.written.Load()), a.name, "written")
			emit(descRecords, prometheus.CounterValue, float64(a.dropped.Load()), a.name, "dropped")
			emit(descRecords, prometheus.CounterValue, float64(a.failed.Load()), a.name, "failed")
		}
	}}
}
