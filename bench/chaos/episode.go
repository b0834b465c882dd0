package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Report is what came of an episode, or of several together.
type Report struct {
	Seconds    float64      `json:"seconds"` // under faults
	Episodes   int          `json:"episodes"`
	Seed       uint64       `json:"seed"`
	Nodes      []int        `json:"nodes"` // of each episode
	Faults     map[Kind]int `json:"faults"`
	Skipped    map[Kind]int `json:"faults_skipped,omitempty"`
	FaultCount int          `json:"fault_count"`
	Operations int          `json:"operations"`
	Acked      int          `json:"acked"` // operations
	Unknown    int          `json:"unknown"`
	AckedLogs  int          `json:"acked_logs"`
	Lost       int          `json:"lost"`
	Duplicated int          `json:"duplicated"`
	Broken     int          `json:"violations"`
	Violations []string     `json:"found"` // what each violation is
	Checked    int          `json:"linearizability_parts"`
	Unchecked  int          `json:"linearizability_out_of_time"`
	Snapshots  int          `json:"snapshots_installed"`
	SelfExits  int          `json:"nodes_ended_by_themselves"`
	Starts     int          `json:"node_starts"`
	LostPages  int          `json:"power_cut_pages_lost"`
	TornPages  int          `json:"power_cut_pages_torn"`
	LostNames  int          `json:"power_cut_names_lost"`
	Kept       []string     `json:"kept,omitempty"` // folders of failed episodes: history, logs
}

// Clean: nothing was found.
func (r *Report) Clean() bool { return len(r.Violations) == 0 && r.Lost == 0 && r.Duplicated == 0 }

// add sums up.
func (r *Report) add(o *Report) {
	r.Seconds += o.Seconds
	r.Episodes += o.Episodes
	r.Nodes = append(r.Nodes, o.Nodes...)
	for k, n := range o.Faults {
		r.Faults[k] += n
	}
	for k, n := range o.Skipped {
		r.Skipped[k] += n
	}
	r.FaultCount += o.FaultCount
	r.Operations += o.Operations
	r.Acked += o.Acked
	r.Unknown += o.Unknown
	r.AckedLogs += o.AckedLogs
	r.Lost += o.Lost
	r.Duplicated += o.Duplicated
	r.Violations = append(r.Violations, o.Violations...)
	r.Broken = len(r.Violations)
	r.Checked += o.Checked
	r.Unchecked += o.Unchecked
	r.Snapshots += o.Snapshots
	r.SelfExits += o.SelfExits
	r.Starts += o.Starts
	r.LostPages += o.LostPages
	r.TornPages += o.TornPages
	r.LostNames += o.LostNames
	r.Kept = append(r.Kept, o.Kept...)
}

func newReport(seed uint64) *Report {
	return &Report{Seed: seed, Faults: map[Kind]int{}, Skipped: map[Kind]int{}, Violations: []string{}}
}

// episode is one cluster from its first start to its end. An error is one of the
// harness; what is wrong with the cluster is in the report.
func episode(ctx context.Context, opt options) (rep *Report, err error) {
	rep = newReport(opt.Seed)
	rep.Episodes, rep.Nodes = 1, []int{opt.Nodes}
	startCtx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	c, err := open(startCtx, opt)
	if err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	defer c.close()
	if err := setUp(startCtx, c.admin); err != nil {
		return nil, fmt.Errorf("set the tables up: %w", err)
	}
	h := newHistory(c.began)
	w, err := startLoad(startCtx, c, h, opt.Load)
	if err != nil {
		w.end()
		return nil, fmt.Errorf("connect the clients: %w", err)
	}
	in := &injector{c: c, nodes: opt.Nodes, done: rep.Faults, skipped: rep.Skipped}
	began := time.Now()
	in.run(ctx, Schedule(opt.Seed, opt.Length, opt.Nodes, opt.Disk, opt.Kinds))
	select { // the rest of the time without faults
	case <-ctx.Done():
	case <-time.After(time.Until(began.Add(opt.Length))):
	}
	rep.Seconds = time.Since(began).Seconds()
	for _, e := range in.errs {
		rep.Violations = append(rep.Violations, e.Error())
	}
	c.note("healing")
	heal, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	herr := c.healthy(heal, opt.Nodes)
	w.end()
	var f findings
	if herr != nil {
		f.add("the cluster did not recover: %v", herr)
	}
	if herr == nil { // what came last reaches everybody
		herr = c.healthy(heal, opt.Nodes)
	}
	look, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	g := inspect(look, c.admin, h)
	f.Lost, f.Duplicated = g.Lost, g.Duplicated
	f.addAll(g.Violations)
	if herr == nil {
		if err := c.settle(look); err != nil {
			f.add("the replicas did not settle: %v", err)
		}
	}
	d := dissect(c, h)
	f.Lost += d.Lost
	f.addAll(d.Violations)
	f.addAll(h.violations())
	checked, open, bad := judge(h.ops, 90*time.Second)
	f.addAll(bad)
	f.addAll(judgePolicies(h.ops))

	rep.Checked, rep.Unchecked = checked, open
	rep.Operations, rep.Acked, rep.Unknown = h.counts()
	rep.AckedLogs = len(h.acked)
	rep.Lost, rep.Duplicated = f.Lost, f.Duplicated
	rep.Violations = append(rep.Violations, f.Violations...)
	rep.Broken = len(rep.Violations)
	for _, n := range rep.Faults {
		rep.FaultCount += n
	}
	rep.LostPages, rep.TornPages, rep.LostNames = in.loss.Pages, in.loss.Torn, in.loss.Names
	for _, n := range c.list() {
		rep.SelfExits += n.crashes
		rep.Starts += n.restarts
	}
	logs, _ := filepath.Glob(filepath.Join(c.base, "*.log"))
	for _, l := range logs {
		b, _ := os.ReadFile(l)
		rep.Snapshots += bytes.Count(b, []byte("restored from a snapshot"))
	}
	if !rep.Clean() {
		rep.Kept = []string{opt.Base}
		_ = h.write(filepath.Join(opt.Base, "history.jsonl"))
	}
	c.writeNotes(filepath.Join(opt.Base, "notes.txt"))
	return rep, nil
}

// settle waits until every replica has applied the same, with nothing missing.
func (c *cluster) settle(ctx context.Context) error {
	for {
		st, err := c.status(3 * time.Second)
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			for _, n := range st.Nodes {
				if n.Voter && (n.Applied < st.Commit || n.Missing > 0) {
					why = fmt.Sprintf("node %s has applied %d of %d and lacks %d payloads", n.ID, n.Applied, st.Commit, n.Missing)
				}
			}
		}
		if why == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", why, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *cluster) writeNotes(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b bytes.Buffer
	for _, n := range c.notes {
		b.WriteString(n + "\n")
	}
	_ = os.WriteFile(path, b.Bytes(), 0o600)
}
