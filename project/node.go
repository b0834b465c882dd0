package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/cluster"
)

// NodeOptions describe one process of a cluster.
type NodeOptions struct {
	Roles  []string // replay, worker, learner
	Dir    string   // data, keys and identity of this node
	ID     string   // "" keeps the one in Dir, or makes one
	Listen string   // replay nodes
	// Advertise is the address others reach a replay node at, when it is not
	// the one it listens on (a container, NAT, a proxy); "" = that one.
	Advertise string
	// Authority and Founder: see cluster.Config. Of other roles the authority
	// gives the token.
	Authority, Founder string
	// Heartbeat, SnapshotEvery and MinFreeBytes override a replay node's
	// (cluster.Config); 0 = the default.
	Heartbeat     time.Duration
	SnapshotEvery uint64
	MinFreeBytes  uint64
	Join          []string // replay nodes to join by
	Token         string   // join token
	// Tenant is whose workers and learners these are; "" = the token's. With the
	// cluster's own token any may be named; cluster.AllTenants, for workers, is
	// every one.
	Tenant  string
	Config  *Config // of the run a learner starts; nil waits for one
	Log     *slog.Logger
	Version string
	// Metrics is the address to serve Prometheus on, HOST:PORT; "" = none. The
	// bound address is written to Dir/metrics-addr.
	Metrics string
	// Ready is called with the address a replay node serves on and the file
	// with its cluster's join token.
	Ready func(addr, tokenFile string)
}

// Validate reports every problem at once.
func (o NodeOptions) Validate() error {
	var errs []error
	if len(o.Roles) == 0 {
		errs = append(errs, errors.New("--role: none given: use replay, worker or learner"))
	}
	for _, r := range o.Roles {
		if !slices.Contains([]string{cluster.RoleReplay, cluster.RoleWorker, cluster.RoleLearner}, r) {
			errs = append(errs, fmt.Errorf("--role: %q: use replay, worker or learner", r))
		}
	}
	if o.Tenant != "" && !slices.ContainsFunc(o.Roles, func(r string) bool { return r != cluster.RoleReplay }) {
		errs = append(errs, fmt.Errorf("--tenant: %q: replay nodes serve all tenants: leave it out", o.Tenant))
	}
	if len(o.Join) == 0 && !slices.Contains(o.Roles, cluster.RoleReplay) {
		errs = append(errs, fmt.Errorf("--join: none given: a %s needs a replay node to join by", strings.Join(o.Roles, " and ")))
	}
	return errors.Join(errs...)
}

// RunNode runs the roles of one node until ctx ends. It returns nil when ctx
// ended it, and an error when a role cannot work at all.
func RunNode(ctx context.Context, o NodeOptions) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("project: node folder: %w", err)
	}
	if o.Authority != "" && !slices.Contains(o.Roles, cluster.RoleReplay) {
		token, err := readFirstLine(filepath.Join(o.Authority, "token"))
		if err != nil {
			return fmt.Errorf("--authority: the token of the cluster: %w", err)
		}
		o.Token = token
	}
	mx, err := serveMetrics(o.Metrics, o.Log)
	if err != nil {
		return err
	}
	defer mx.Close()
	sys := actors.NewSystem(o.Log)
	defer sys.Close()
	var handles []*actors.Handle
	spawn := func(r actors.Role) error {
		h, err := sys.Spawn(r, actors.DefaultRestart)
		handles = append(handles, h)
		return err
	}
	addrs := o.Join
	if slices.Contains(o.Roles, cluster.RoleReplay) {
		if len(o.Roles) == 1 {
			TuneReplay()
		}
		// What keeps the first opening from working, a restart does not cure.
		node, err := openReplay(ctx, o, mx)
		if err != nil {
			return err
		}
		addr, tokenFile := node.Addr(), filepath.Join(o.Dir, "replay", "token")
		addrs = append([]string{addr}, addrs...)
		if err := spawn(actors.ReplayNode(serveReplay(o, node, mx), nil)); err != nil {
			return errors.Join(err, node.Close())
		}
		if o.Ready != nil {
			o.Ready(addr, tokenFile)
		}
		if o.Token == "" {
			if o.Token, err = readFirstLine(tokenFile); err != nil {
				return fmt.Errorf("project: the cluster's join token: %w", err)
			}
		}
	}
	for _, role := range o.Roles {
		if role == cluster.RoleReplay {
			continue
		}
		m, err := joinAs(ctx, o, role, addrs)
		if err != nil {
			return err
		}
		defer m.Close()
		m.metrics = mx
		if err := spawn(m.role()); err != nil {
			return err
		}
	}
	if err := mx.announce(o.Dir); err != nil {
		return err
	}
	return awaitRoles(ctx, handles)
}

// awaitRoles returns when ctx ends (nil) or a role gives up (its error).
func awaitRoles(ctx context.Context, handles []*actors.Handle) error {
	gone := make(chan error, len(handles))
	for _, h := range handles {
		go func() {
			<-h.Done()
			if err := h.Err(); !errors.Is(err, actors.ErrDrained) {
				gone <- err
			}
		}()
	}
	select {
	case err := <-gone:
		return err
	case <-ctx.Done():
		return nil
	}
}

func openReplay(ctx context.Context, o NodeOptions, mx *metrics) (*cluster.Node, error) {
	cfg := cluster.DefaultConfig(filepath.Join(o.Dir, "replay"))
	cfg.Store.Verify = verifyLog
	cfg.ID, cfg.Listen, cfg.Join, cfg.Token, cfg.Version, cfg.Logger = o.ID, o.Listen, o.Join, o.Token, o.Version, o.Log
	cfg.Registerer = mx.registerer()
	cfg.Advertise, cfg.Authority, cfg.Founder = o.Advertise, o.Authority, o.Founder
	if o.Heartbeat != 0 {
		cfg.Heartbeat = o.Heartbeat
	}
	if o.SnapshotEvery != 0 {
		cfg.SnapshotEvery = o.SnapshotEvery
	}
	if o.MinFreeBytes != 0 {
		cfg.Store.MinFreeBytes = o.MinFreeBytes
	}
	return cluster.Open(ctx, cfg)
}

// serveReplay keeps a replica open until its role is stopped or the replica
// fails; a restarted role opens it again.
func serveReplay(o NodeOptions, node *cluster.Node, mx *metrics) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if node == nil {
			if node, err = openReplay(ctx, o, mx); err != nil {
				return err
			}
		}
		mx.replayNode(node)
		select {
		case <-ctx.Done():
		case <-node.Failed():
		}
		mx.replayNode(nil)
		n := node
		node = nil
		return errors.Join(n.Err(), n.Close())
	}
}
