package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/project"
)

func newTrain(g *globals) *cobra.Command {
	var config, dir, metrics string
	var sets []string
	var dry bool
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Run a training configuration in one process",
		Long: `train plays every role of a run in this process. Started again with the same
--dir it continues where it stopped, with the same next batch. For separate
processes see skein up; for several machines see skein node.`,
		Example: `  skein train --config recipes/store-grpo.yaml
  skein train --config recipes/store-grpo.yaml --set training.learning_rate=2e-4 --set training.loss_type=dapo --dir runs/mine
  skein train --config recipes/store-grpo.yaml --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := project.Load(config, sets)
			if err != nil {
				return err
			}
			printNotes(notes)
			if dry {
				return printConfig(g, cfg)
			}
			if config == "" {
				fmt.Fprintf(os.Stderr, "note: no --config: training %s on task %s with the defaults\n", cfg.Model, cfg.Task.Name)
			}
			if dir == "" {
				dir = filepath.Join("runs", cfg.Run)
			}
			return runLocal(cmd.Context(), g, cfg, project.LocalOptions{Dir: dir, Metrics: metrics})
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration file (YAML onto the defaults)")
	cmd.Flags().StringVar(&dir, "dir", "", "folder of the run (default runs/RUN)")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "override a key of the configuration: key.path=value (repeatable)")
	cmd.Flags().StringVar(&metrics, "metrics", "", "serve Prometheus metrics on HOST:PORT (port 0: any free one, written to DIR/metrics-addr)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the resolved configuration and stop")
	return cmd
}

// printConfig prints a resolved configuration: YAML, or one line of JSON.
func printConfig(g *globals, cfg project.Config) error {
	text, err := cfg.YAML()
	if err != nil {
		return err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	return g.result(tree, func() { fmt.Print(string(text)) })
}

// runLocal runs a configuration in this process and prints its outcome.
func runLocal(ctx context.Context, g *globals, cfg project.Config, opt project.LocalOptions) error {
	opt.Log, opt.Progress = g.logger(), os.Stderr
	sum, err := project.RunLocal(ctx, cfg, opt)
	return finish(g, sum, opt.Dir, err)
}

// finish prints a run's outcome; an interrupted run says how to go on.
func finish(g *globals, sum project.Summary, dir string, err error) error {
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "stopped after step %d; the same command with --dir %s goes on from there\n", sum.Steps, dir)
		if g.json {
			err = errors.Join(err, g.result(sum, nil))
		}
		return errors.Join(errReported, err)
	}
	if err != nil {
		return err
	}
	return g.result(sum, func() {
		fmt.Print("\n", sum.Table())
		fmt.Printf("  report: %s\n", filepath.Join(dir, "report.html"))
	})
}
