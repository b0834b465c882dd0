package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newQuickstart(g *globals) *cobra.Command {
	var dir string
	var sets []string
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Train the embedded tiny model on tool calls, in one process, with nothing installed",
		Long: `quickstart plays every role of Skein in this one process, on the pure-Go
backend: a replay store, a rollout worker and a learner train the embedded tiny
model with GRPO on a multi-turn tool task. It ends with a before/after table on
held-out tasks.`,
		Example: `  skein quickstart
  skein quickstart --set training.max_steps=40 --dir runs/longer
  skein quickstart --json | jq .heldout_after`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := project.LoadRecipe("quickstart", sets)
			if err != nil {
				return err
			}
			printNotes(notes)
			if dir != "" {
				return runLocal(cmd.Context(), g, cfg, project.LocalOptions{Dir: dir})
			}
			tmp, err := os.MkdirTemp("", "skein-quickstart-")
			if err != nil {
				return err
			}
			sum, err := project.RunLocal(cmd.Context(), cfg, project.LocalOptions{Dir: tmp, Log: g.logger(), Progress: os.Stderr})
			if err != nil {
				return finish(g, sum, tmp, err) // kept: it can be resumed or looked at
			}
			if err := os.RemoveAll(tmp); err != nil {
				return err
			}
			return g.result(sum, func() {
				fmt.Print("\n", sum.Table(), "  give --dir to keep the run, its EventLogs and its report\n")
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "keep the run here, resumable (default: a temporary folder, removed when the run is done)")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "override a key of the configuration: key.path=value (repeatable)")
	return cmd
}

func printNotes(notes []string) {
	for _, n := range notes {
		fmt.Fprintln(os.Stderr, "note:", n)
	}
}
