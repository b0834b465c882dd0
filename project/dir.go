package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/skein-rl/skein/replay"
)

// Kinds of run folders.
const (
	kindLocal   = "single-process"
	kindCluster = "local-cluster"
	kindRows    = "rows"
)

// layout is what a run folder says about itself (layout.json), so that it is
// never opened as something else.
type layout struct {
	Kind   string `json:"kind"`
	Run    string `json:"run"`
	Replay int    `json:"replay_nodes"`
}

func (l layout) String() string {
	switch l.Kind {
	case kindLocal:
		return fmt.Sprintf("run %q in a single process", l.Run)
	case kindRows:
		return fmt.Sprintf("run %q, trained on files", l.Run)
	}
	return fmt.Sprintf("run %q as a local cluster of %d replay nodes", l.Run, l.Replay)
}

// checkDir says whether a folder is free for a run, or already that run's.
func checkDir(dir string, want layout) error {
	have, err := readLayout(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && have != want {
		err = fmt.Errorf("project: folder %s holds %s, not %s: use another --dir", dir, have, want)
	}
	return err
}

// claimDir marks a folder as a run's, or checks that it is that run's.
func claimDir(dir string, want layout) error {
	if _, err := readLayout(dir); !errors.Is(err, fs.ErrNotExist) {
		return checkDir(dir, want)
	}
	b, err := json.Marshal(want)
	if err != nil {
		return err
	}
	return writeFile(layoutPath(dir), append(b, '\n'))
}

func readLayout(dir string) (layout, error) {
	b, err := os.ReadFile(layoutPath(dir))
	if err != nil {
		return layout{}, err
	}
	var l layout
	if err := json.Unmarshal(b, &l); err != nil {
		return layout{}, fmt.Errorf("project: %s: %w", layoutPath(dir), err)
	}
	return l, nil
}

func layoutPath(dir string) string { return filepath.Join(dir, "layout.json") }

// checkSpace refuses to start a run on a disk so full that its store would
// refuse every append.
func checkSpace(dir string, reserve uint64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("project: free space of %s: %w", dir, err)
	}
	if free := s.Bavail * uint64(s.Bsize); free < reserve {
		return fmt.Errorf("project: folder %s: %w: %d MiB free, but %d MiB are kept in reserve: free some space, or use a --dir on another disk",
			dir, replay.ErrDiskFull, free>>20, reserve>>20)
	}
	return nil
}

// replayDir is the folder of a local cluster's i-th replay node.
func replayDir(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("replay-%d", i)) }
