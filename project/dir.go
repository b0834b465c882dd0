package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Kinds of run folders.
const (
	kindLocal   = "single-process"
	kindCluster = "local-cluster"
)

// layout is what a run folder says about itself (layout.json), so that it is
// never opened as something else.
type layout struct {
	Kind   string `json:"kind"`
	Run    string `json:"run"`
	Replay int    `json:"replay_nodes"`
}

// claimDir marks a folder as a run's, or checks that it is that run's.
func claimDir(dir, kind string, c Config) error {
	return claimLayout(dir, layout{Kind: kind, Run: c.Run, Replay: 1})
}

func claimLayout(dir string, want layout) error {
	have, err := readLayout(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b, err := json.Marshal(want)
		if err != nil {
			return err
		}
		return writeFile(layoutPath(dir), append(b, '\n'))
	case err != nil:
		return err
	case have != want:
		return fmt.Errorf("project: folder %s holds run %q as a %s with %d replay nodes, not %q as a %s with %d: use another --dir",
			dir, have.Run, have.Kind, have.Replay, want.Run, want.Kind, want.Replay)
	}
	return nil
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

// replayDir is the folder of a local cluster's i-th replay node.
func replayDir(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("replay-%d", i)) }
