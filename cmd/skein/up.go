package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newUp(g *globals) *cobra.Command {
	var config string
	var sets []string
	opt := project.UpOptions{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a training configuration as a local cluster of separate processes",
		Long: `up starts replay nodes, rollout workers and a learner as separate processes of
this machine, joined by mTLS, keeps them alive (kill any of them: it comes back
and the run goes on), shows progress, and ends with a before/after table and
DIR/report.html. Started again with the same --dir it continues.`,
		Example: `  skein up --config recipes/demo-tiny.yaml --dir runs/demo
  skein up --config run.yaml --replay 1 --workers 4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := project.Load(config, sets)
			if err != nil {
				return err
			}
			printNotes(notes)
			if opt.Dir == "" {
				opt.Dir = filepath.Join("runs", cfg.Run)
			}
			opt.Log, opt.Progress, opt.Verbose = g.logger(), os.Stderr, g.verbose
			sum, err := project.Up(cmd.Context(), cfg, opt)
			return finish(g, sum, opt.Dir, err)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration file (YAML onto the defaults)")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "override a key of the configuration: key.path=value (repeatable)")
	cmd.Flags().StringVar(&opt.Dir, "dir", "", "folder of the run (default runs/RUN)")
	cmd.Flags().IntVar(&opt.Replay, "replay", 3, "replay nodes: 1, 3 or 5")
	cmd.Flags().IntVar(&opt.Workers, "workers", 2, "rollout workers")
	cmd.Flags().IntVar(&opt.Learners, "learners", 1, "learners: one trains, the others compute part of its micro-batches (training.token_budget says how large one is)")
	cmd.Flags().BoolVar(&opt.Metrics, "metrics", false, "let every process serve Prometheus metrics on a free port of 127.0.0.1, written to DIR/NAME/metrics-addr")
	return cmd
}
