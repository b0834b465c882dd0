package project

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// member is a worker or learner process joined to a cluster.
type member struct {
	opt    NodeOptions
	name   string
	kind   string
	client *cluster.Router
	lock   *os.File // on the role's folder
	began  time.Time
	// metrics may be nil.
	metrics *metrics
	// Learners only: what this one does, and its port for the others.
	duty   atomic.Pointer[duty]
	server *cluster.LearnerServer
	// Workers only: fetches policies, and passes them on to other workers.
	policies *cluster.Policies
}

// joinAs gets a certificate for a role and connects with it.
func joinAs(ctx context.Context, o NodeOptions, role string, addrs []string) (*member, error) {
	dir := filepath.Join(o.Dir, role)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("project: folder of the %s: %w", role, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	id, err := nodeID(dir, o.ID, role)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	client, err := dialAs(ctx, addrs, o.Token, id, role, o.Tenant, dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	m := &member{opt: o, name: id, kind: role, client: client, lock: lock, began: time.Now()}
	m.duty.Store(&duty{})
	listen := o.Listen
	if len(o.Roles) > 0 && o.Roles[0] != role || slices.Contains(o.Roles, cluster.RoleReplay) {
		listen = "" // is the replay node's, or the first role's
	}
	switch role {
	case cluster.RoleLearner:
		m.server, err = client.ServeLearner(listen, o.Log, m.assist)
	case cluster.RoleWorker:
		m.policies, err = client.ServePolicies(listen, o.Log)
	}
	if err != nil {
		return nil, errors.Join(err, client.Close(), lock.Close())
	}
	return m, nil
}

// dial connects with the certificate in dir, or joins for one. Without a
// certificate a token is needed.
func dial(ctx context.Context, addrs []string, token, id, role, dir string) (*cluster.Router, error) {
	return dialAs(ctx, addrs, token, id, role, "", dir)
}

// dialAs is dial for a tenant other than the token's; "" = the token's.
func dialAs(ctx context.Context, addrs []string, token, id, role, tenant, dir string) (*cluster.Router, error) {
	cfg := cluster.JoinConfig{Addrs: addrs, ID: id, Role: role, Tenant: tenant, Dir: dir}
	if token != "" {
		var err error
		if cfg.Token, err = cluster.ParseToken(token); err != nil {
			return nil, err
		}
	}
	c, err := cluster.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r, err := cluster.Route(ctx, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return r, nil
}

// nodeID is the id given, the one kept in dir, or a new one, which is kept: a
// restarted worker is the same worker.
func nodeID(dir, given, role string) (string, error) {
	path := filepath.Join(dir, "id")
	kept, err := readFirstLine(path)
	switch {
	case err == nil && (given == "" || given == kept):
		return kept, nil
	case err == nil:
		return "", fmt.Errorf("project: --id %q: the folder %s belongs to %q: use another folder", given, dir, kept)
	case !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	if given == "" {
		var b [4]byte
		if _, err := io.ReadFull(rand.Reader, b[:]); err != nil {
			return "", err
		}
		given = role + "-" + hex.EncodeToString(b[:])
	}
	return given, writeFile(path, []byte(given+"\n"))
}

func readFirstLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line), nil
}

// Close leaves the cluster's services; membership stays.
func (m *member) Close() error {
	if m.server != nil {
		m.server.Close()
	}
	if m.policies != nil {
		m.policies.Close()
	}
	return errors.Join(m.client.Close(), m.lock.Close())
}

func (m *member) role() actors.Role {
	if m.kind == cluster.RoleWorker {
		return actors.Worker(m.workForever, nil)
	}
	if m.opt.Config != nil {
		return soleLearner(m.learnForever)
	}
	return actors.Learner(m.learnForever, nil)
}

// workForever serves the unfinished runs.
func (m *member) workForever(ctx context.Context) error { return newHost(m).serve(ctx) }

// learnForever trains the configured run, then whatever run needs a learner.
func (m *member) learnForever(ctx context.Context) error {
	defer m.beat(ctx)()
	if m.opt.Config != nil && m.opt.Config.Training.Offline() {
		return m.helpRows(ctx)
	}
	if m.opt.Config != nil {
		p, err := openParts(*m.opt.Config, m.opt.Log)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		if err = p.checkRun(ctx, m.client); err != nil {
			return errors.Join(err, p.Close())
		}
		err = p.ensureRun(ctx, m.client, filepath.Join(m.opt.Dir, "learner"), m.opt.Log, os.Stderr)
		if err := errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
	for {
		p, err := m.nextRun(ctx)
		if err != nil {
			return err
		}
		err = m.learnRun(ctx, p)
		if err := errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
}

// learnRun trains a run to its end and closes it. A run that another learner
// closed first is no error.
func (m *member) learnRun(ctx context.Context, p *parts) error {
	p.dir = filepath.Join(m.opt.Dir, "learner", "runs", p.cfg.Run)
	err := p.learn(ctx, m.client, m.name, learnerHooks(m.opt.Log), m)
	if err == nil {
		return finishRun(ctx, m.client, p.cfg)
	}
	if s, serr := m.client.Status(ctx, p.cfg.Run); serr == nil && s.Finished {
		m.opt.Log.Info("run is finished", "run", p.cfg.Run, "error", err)
		return nil
	}
	return err
}

// beat tells the leader every second that this process lives, until ctx ends or
// the returned function is called, which waits for it.
func (m *member) beat(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			m.heartbeat(ctx, cluster.NodeInfo{})
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// heartbeat tells the leader about this process. It is information only, so a
// failure is no reason to stop working.
func (m *member) heartbeat(ctx context.Context, info cluster.NodeInfo) {
	info.ID, info.Role, info.Started, info.Version = m.name, m.kind, m.began, m.opt.Version
	if m.server != nil {
		d := m.duty.Load()
		info.Addr, info.Run, info.Leads = m.server.Addr(), d.run, d.leads
	}
	if m.policies != nil {
		info.Addr = m.policies.Addr()
		tellPolicies(&info, m.policies.Stats())
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := m.client.Heartbeat(ctx, info); err != nil && ctx.Err() == nil {
		level := slog.LevelDebug
		if errors.Is(err, replay.ErrInvalid) { // another process with this id
			level = slog.LevelWarn
		}
		m.opt.Log.Log(ctx, level, "heartbeat", "error", err)
	}
}

// nextRun waits for an unfinished run that a learner may train and opens what its
// configuration names. Its own run comes first; it does not train what only
// evaluates.
func (m *member) nextRun(ctx context.Context) (*parts, error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		spec, ok, err := openRun(ctx, m.client, m.wants)
		if err != nil && !errors.Is(err, replay.ErrUnavailable) && ctx.Err() == nil {
			return nil, err
		}
		if ok {
			c, err := Parse(spec.Config)
			if err != nil {
				return nil, fmt.Errorf("project: configuration of run %s: %w", spec.Run, err)
			}
			c.Run = spec.Run // a base model's evaluation has its run's configuration
			p, err := openParts(c, m.opt.Log)
			if err != nil {
				return nil, err
			}
			p.metrics = m.metrics
			if err := sameBase(spec, c.Model, p.model.Digest); err != nil {
				return nil, errors.Join(err, p.Close())
			}
			return p, nil
		}
		m.heartbeat(ctx, cluster.NodeInfo{})
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// wants orders the unfinished runs for a learner: highest first, then by
// name; below 0 it leaves a run to others.
func (m *member) wants(run string) int {
	switch {
	case strings.HasSuffix(run, baseSuffix):
		return -1
	case m.opt.Config != nil && m.opt.Config.Run == run:
		return 1
	}
	return 0
}

// openRun finds the unfinished run that is wanted most.
func openRun(ctx context.Context, st replay.Store, wants func(run string) int) (spec replay.RunSpec, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	runs, err := st.Runs(ctx)
	if err != nil {
		return spec, false, err
	}
	slices.SortStableFunc(runs, func(a, b string) int { return wants(b) - wants(a) })
	for _, name := range runs {
		if wants(name) < 0 {
			break
		}
		s, err := st.Status(ctx, name)
		if err != nil {
			return spec, false, err
		}
		if !s.Finished {
			return s.Spec, true, nil
		}
	}
	return spec, false, nil
}
