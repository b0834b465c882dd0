package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// RestoreOptions say what a backup becomes.
type RestoreOptions struct {
	Name string // of the backup; "" = the newest
	Dir  string // new folder
	ID   string // of the node; "" = made up
	// Run, when set, makes the folder of this run in a single process, instead
	// of a replay node's.
	Run string
	Log *slog.Logger
}

// Restore makes a replay node's folder, or a run's, of a backup.
func Restore(ctx context.Context, o RestoreOptions, src cluster.RestoreSource) (cluster.RestoreReport, error) {
	if names, err := os.ReadDir(o.Dir); err == nil && len(names) > 0 {
		return cluster.RestoreReport{}, fmt.Errorf("project: folder %s is not empty: name a new one", o.Dir)
	}
	if o.Run == "" {
		cfg := cluster.DefaultConfig(filepath.Join(o.Dir, "replay"))
		cfg.Store.Verify, cfg.ID, cfg.Logger = verifyLog, o.ID, o.Log
		return cluster.Restore(ctx, cfg, false, src)
	}
	cfg := localNode(o.Dir, o.Log)
	rep, err := cluster.Restore(ctx, cfg, true, src)
	if err != nil {
		return rep, err
	}
	st, err := openLocalStore(ctx, StoreOptions{Dir: o.Dir, Log: o.Log})
	if err != nil {
		return rep, err
	}
	runs, err := st.Runs(ctx)
	if err = errors.Join(err, st.Close()); err == nil && !slices.Contains(runs, o.Run) {
		err = fmt.Errorf("project: the backup has no run %q, it has %q: restore it into another folder", o.Run, runs)
	}
	if err != nil {
		return rep, err
	}
	return rep, claimDir(o.Dir, layout{Kind: kindLocal, Run: o.Run})
}

// RebuildIndex makes the index of a stopped replay node anew; dir is the node's
// replay folder (of a run in a single process: its node folder).
func RebuildIndex(dir string, log *slog.Logger) (replay.RebuildReport, error) {
	cfg := cluster.DefaultConfig(dir)
	cfg.Store.Verify, cfg.Logger = verifyLog, log
	return cluster.RebuildIndex(cfg)
}

// NewStore makes a store of its own in a folder, without a run.
func NewStore(ctx context.Context, dir string, log *slog.Logger) (*Store, error) {
	return openLocalStore(ctx, StoreOptions{Dir: dir, Log: log})
}
