package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// StoreOptions say where a run's store is: in a folder, or at a cluster.
type StoreOptions struct {
	Dir   string // of a run (skein train, quickstart, up) or of a node
	Join  string // host:port of a replay node
	Token string // with Join
	// Shard opens one shard of a running cluster instead of the whole; "" = the
	// whole.
	Shard string
	Log   *slog.Logger
}

// Store is a run's store opened for looking at it; Close frees what it holds.
type Store struct {
	replay.Store
	replay.Operator
	close func() error
	// Cluster tells about the nodes; nil when they are not running.
	Cluster func(context.Context) (cluster.ClusterStatus, error)
	// Admin does what only an operator does: takes nodes out, replaces the
	// join token. nil when the nodes are not running.
	Admin *cluster.Router
}

// Close implements replay.Store.
func (s *Store) Close() error { return s.close() }

// OpenStore connects to a running cluster, or opens the stopped run in a
// folder. A folder whose processes are running is reached through them.
func OpenStore(ctx context.Context, o StoreOptions) (*Store, error) {
	st, err := openStore(ctx, o)
	if err != nil || o.Shard == "" {
		return st, err
	}
	if st.Admin == nil {
		return nil, errors.Join(fmt.Errorf("project: shard %q: the nodes are not running: start them first", o.Shard), st.Close())
	}
	c, err := st.Admin.ShardClient(ctx, o.Shard)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	st.Store, st.Operator, st.Cluster = c, c, c.ClusterStatus
	return st, nil
}

func openStore(ctx context.Context, o StoreOptions) (*Store, error) {
	if o.Join != "" {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return connect(ctx, []string{o.Join}, o.Token, "")
	}
	l, err := readLayout(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("project: %s is not the folder of a run (no layout.json): give the --dir of skein train, quickstart or up; for a node use --join", o.Dir)
	}
	if err != nil {
		return nil, err
	}
	if l.Kind == kindRows {
		return nil, fmt.Errorf("project: %s holds %s: it has no store; skein status and skein verify step read it, and so can you: metrics.jsonl, summary.json", o.Dir, l)
	}
	if l.Kind == kindLocal {
		return openLocalStore(ctx, o)
	}
	if st, err := connectDir(ctx, o.Dir, l); err == nil {
		return st, nil
	}
	return openReplicas(ctx, o.Dir, l)
}

func openLocalStore(ctx context.Context, o StoreOptions) (*Store, error) {
	node, err := cluster.OpenLocal(localNode(o.Dir, o.Log))
	if err != nil {
		return nil, fmt.Errorf("project: opening the store in %s (is its run still going on?): %w", o.Dir, err)
	}
	if err := node.WaitReady(ctx, 1); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &Store{Store: node.Store(), Operator: node.Operator(), close: node.Close}, nil
}

// clientDir is where a command keeps the certificate it looks with.
const clientDir = "client"

// connect joins as a client. dir "" uses a temporary identity.
func connect(ctx context.Context, addrs []string, token, dir string) (*Store, error) {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "skein-client-")
		if err != nil {
			return nil, err
		}
		st, err := connect(ctx, addrs, token, tmp)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(tmp))
		}
		inner := st.close
		st.close = func() error { return errors.Join(inner(), os.RemoveAll(tmp)) }
		return st, nil
	}
	id, err := nodeID(dir, "", cluster.RoleClient)
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, addrs, token, id, cluster.RoleClient, dir)
	if err != nil {
		return nil, err
	}
	return &Store{Store: c, Operator: c, close: c.Close, Cluster: c.ClusterStatus, Admin: c}, nil
}

// connectDir reaches the running replay nodes of a local cluster by the
// addresses and token they left in its folder.
func connectDir(ctx context.Context, dir string, l layout) (*Store, error) {
	var addrs []string
	for i := range l.Replay {
		if a, err := readFirstLine(filepath.Join(replayDir(dir, i), "replay", "addr")); err == nil {
			addrs = append(addrs, a)
		}
	}
	token, err := readFirstLine(filepath.Join(replayDir(dir, 0), "replay", "token"))
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("project: no replay node of %s has an address", dir)
	}
	mine := filepath.Join(dir, clientDir)
	if err := os.MkdirAll(mine, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return connect(ctx, addrs, token, mine)
}
