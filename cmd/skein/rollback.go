package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/learner"
)

func newRollback(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "rollback STEP",
		Short: "Go back to the policy and the training state after a committed step",
		Long: `rollback publishes the adapter of a committed step as the newest policy version;
workers take it up like any other, and the learner goes on from that step's
checkpoint, optimizer included. Nothing is deleted: it is a step of its own,
which trained nothing. What the versions in between have sampled is not trained
any more and is dropped as stale. The run may be at work or stopped; the step's
checkpoint must be kept (limits.save_total_limit).`,
		Example: `  skein rollback 12 --dir runs/demo
  skein rollback 40 --run gsm8k --join 10.0.0.1:7400 --token-file token`,
		Args: oneArg("step number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || to == 0 {
				return fmt.Errorf("step %q: give the number of a committed step, from 1", args[0])
			}
			st, run, err := t.open(cmd.Context(), g)
			if err != nil {
				return err
			}
			defer st.Close()
			rec, err := learner.Rollback(cmd.Context(), st, run, to)
			if err != nil {
				return err
			}
			view := map[string]any{"run": run, "step": rec.Step, "policy_version": rec.Version, "rolled_back_to": to, "adapter": rec.Adapter}
			return g.result(view, func() {
				fmt.Printf("run %s is at the state after step %d again: step %d, policy version %d\n", run, to, rec.Step, rec.Version)
			})
		},
	}
	t.flags(cmd)
	return cmd
}
