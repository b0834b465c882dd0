package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/skein-rl/skein/project"
)

// runMany trains several configurations at once, each in DIR/RUN, and prints the
// outcome of each.
func (f *trainFlags) runMany(ctx context.Context, g *globals, sets []string) error {
	if f.dry {
		return fmt.Errorf("--dry-run: it plans one configuration, not the %d of --config: name one", len(f.configs))
	}
	dir := f.dir
	if dir == "" {
		dir = "runs"
	}
	var runs []project.ManyRun
	var bad []error
	for _, path := range f.configs {
		cfg, notes, err := project.Load(path, sets)
		printNotes(notes)
		bad = append(bad, err)
		runs = append(runs, project.ManyRun{Config: cfg, Dir: filepath.Join(dir, cfg.Run)})
	}
	if err := errors.Join(bad...); err != nil {
		return err
	}
	out, err := project.TrainMany(ctx, runs, project.LocalOptions{Log: g.logger(), Progress: os.Stderr, Metrics: f.metrics})
	if out == nil {
		return err
	}
	perr := g.result(map[string]any{"runs": out}, func() { printOutcomes(out) })
	if perr != nil {
		return errors.Join(err, perr)
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "stopped; the same command goes on from there")
		return errors.Join(errReported, err)
	}
	return err
}

func printOutcomes(out []project.ManyOutcome) {
	for _, o := range out {
		fmt.Printf("\n%s: %s, in %s\n", o.Run, o.State, o.Dir)
		switch {
		case o.State == project.StateFailed:
			fmt.Printf("  %s\n", o.Error)
		case o.Summary != nil:
			fmt.Print(o.Summary.Table())
		case o.Rows != nil:
			fmt.Print(o.Rows.Table())
			if o.Rows.Adapter != "" {
				fmt.Printf("  adapter: %s\n", o.Rows.Adapter)
			}
		}
	}
}
