package project

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/replay"
)

// duty is what a learner process does, as its heartbeats tell the others.
type duty struct {
	run    string
	leads  bool
	lender *learner.Lender
}

// team is the learners of a run: who of them leads is a rule over the heartbeats
// that every one of them reads. It may have two leaders for a moment, when the
// replay nodes' leader changes; the lease then lets one of them commit.
type team struct {
	m   *member
	run string
}

var _ learner.Team = (*team)(nil)

const (
	leadPoll = 500 * time.Millisecond
	// leadPolls views in a row must make a learner the leader before it leads: a
	// new leader of the replay nodes has not heard from everybody yet.
	leadPolls = 3
)

// leaderOf is the learner of a run that leads: of those alive the one that says
// so, else the first by id; of several that say so the first.
func leaderOf(nodes []cluster.NodeStatus, run string) string {
	first, leads := "", ""
	for _, n := range nodes {
		if n.Role != cluster.RoleLearner || n.Run != run || !n.Alive {
			continue
		}
		if first == "" || n.ID < first {
			first = n.ID
		}
		if n.Leads && (leads == "" || n.ID < leads) {
			leads = n.ID
		}
	}
	if leads != "" {
		return leads
	}
	return first
}

// Lead implements learner.Team.
func (t *team) Lead(ctx context.Context) (waited bool, err error) {
	tick := time.NewTicker(leadPoll)
	defer tick.Stop()
	for mine := 0; ; {
		leads := t.m.duty.Load().leads
		view, err := t.view(ctx)
		switch {
		case err != nil && leads:
			return waited, nil // nobody tells otherwise
		case err == nil && leaderOf(view, t.run) == t.m.name:
			if mine++; leads || mine >= leadPolls {
				t.m.setLeads(true)
				return waited, nil
			}
		default:
			mine = 0
			if leads {
				t.m.opt.Log.Info("another learner leads; helping it", "run", t.run)
			}
			t.m.setLeads(false)
			waited = true
		}
		if err := t.checkOpen(ctx); err != nil {
			return waited, err
		}
		select {
		case <-ctx.Done():
			return waited, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// errFinished ends the waiting for a run that needs no learner any more.
var errFinished = errors.New("project: the run is finished")

func (t *team) checkOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := t.m.client.Status(ctx, t.run)
	if errors.Is(err, replay.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if err == nil && s.Finished {
		err = errFinished
	}
	return err
}

func (t *team) view(ctx context.Context) ([]cluster.NodeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := t.m.client.ClusterStatus(ctx)
	if err == nil && s.Leader == "" {
		err = replay.ErrUnavailable // a view without a leader knows no heartbeats
	}
	return s.Nodes, err
}

// Helpers implements learner.Team.
func (t *team) Helpers(ctx context.Context) ([]string, error) {
	nodes, err := t.view(ctx)
	var out []string
	for _, n := range nodes {
		if n.Role == cluster.RoleLearner && n.Run == t.run && n.Alive && !n.Leads && n.Addr != "" && n.ID != t.m.name {
			out = append(out, n.ID)
		}
	}
	return out, err
}

// Dial implements learner.Team.
func (t *team) Dial(ctx context.Context, id string) (learner.Channel, error) {
	nodes, err := t.view(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.ID == id && n.Addr != "" {
			return t.m.client.DialLearner(ctx, n.Addr, id)
		}
	}
	return nil, fmt.Errorf("project: learner %s tells no address", id)
}

// share makes a loop one of the cluster's learners of the run; the returned
// function ends that, before the trainer is closed.
func (m *member) share(run string, loop *learner.Loop, lender *learner.Lender) (stop func()) {
	m.duty.Store(&duty{run: run, lender: lender})
	loop.Share(&team{m, run}, lender)
	return func() {
		m.duty.Store(&duty{})
		lender.Close()
	}
}

func (m *member) setLeads(leads bool) {
	d := *m.duty.Load()
	if d.leads != leads {
		d.leads = leads
		m.duty.Store(&d)
		m.opt.Log.Info("learner", "run", d.run, "leads", leads)
	}
}

// errNoRun answers a learner that asks one which has no run yet.
var errNoRun = errors.New("project: this learner works on no run now")

// assist serves another learner of the cluster.
func (m *member) assist(ctx context.Context, ch *cluster.Channel) error {
	d := m.duty.Load()
	if d.lender == nil {
		return errNoRun
	}
	m.opt.Log.Info("helping", "run", d.run, "leader", ch.From())
	err := d.lender.Serve(ctx, ch)
	m.opt.Log.Info("helping ended", "run", d.run, "leader", ch.From(), "error", err)
	return err
}
