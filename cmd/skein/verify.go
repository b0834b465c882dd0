package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/project"
)

func newVerify(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Recompute what a run recorded and compare",
	}
	cmd.AddCommand(newVerifyStep(g))
	return cmd
}

func newVerifyStep(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "step N",
		Short: "Recompute committed step N from the stored logs and compare the adapter's digest",
		Long: `verify step starts from the checkpoint that step N started from, trains the very
EventLogs that step trained, and compares the adapter it gets with the one that
was published. On the same kind of machine and backend they are equal bit for
bit; elsewhere the largest difference is shown. Exit status 1 when they differ.

Of a training on files it starts from the last checkpoint before step N and
reads the rows again; rows that have changed are refused by digest.`,
		Example: "  skein verify step 7 --dir runs/demo\n  skein verify step 12 --dir runs/store-dpo --json",
		Args:    oneArg("step number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || n == 0 {
				return fmt.Errorf("step %q: give the number of a committed step, from 1", args[0])
			}
			rep, err := verifyStep(cmd.Context(), g, &t, n)
			if err != nil {
				return err
			}
			err = g.result(rep, func() {
				if rep.From != nil && rep.Rows == 0 {
					fmt.Printf("step %d of run %s (policy version %d) rolled back to step %d and trained nothing\n", rep.Step, rep.Run, rep.Version, *rep.From)
				} else if rep.From != nil {
					fmt.Printf("step %d of run %s, of %d rows, recomputed after step %d\n", rep.Step, rep.Run, rep.Rows, *rep.From)
				} else {
					fmt.Printf("step %d of run %s (policy version %d), from %d logs\n", rep.Step, rep.Run, rep.Version, rep.LogsVerified)
				}
				fmt.Printf("  recorded   %s\n  recomputed %s\n", rep.AdapterRecorded, rep.AdapterRecomputed)
				for _, m := range rep.Metrics {
					fmt.Printf("  metric %s differs: %+v\n", m.Name, m)
				}
				if k := rep.Critic; k != nil && k.Different > 0 {
					fmt.Printf("  critic: %d of %d parameters differ, by at most %.3g\n", k.Different, k.Params, k.MaxAbsDiff)
				}
				if rep.OK {
					fmt.Println("  equal, bit for bit")
				} else if rep.From != nil && rep.CheckpointRecorded == "" {
					fmt.Println("  DIFFERENT; the step's own checkpoint is not kept, so by how much cannot be said")
				} else {
					fmt.Printf("  DIFFERENT: %d of %d parameters, by at most %.3g\n", rep.Different, rep.Params, rep.MaxAbsDiff)
				}
			})
			if err == nil && !rep.OK {
				return errReported
			}
			return err
		},
	}
	t.flags(cmd)
	return cmd
}

// verifyStep recomputes a committed step of a run, whatever it trains on.
func verifyStep(ctx context.Context, g *globals, t *target, n uint64) (*learner.VerifyReport, error) {
	if t.dir != "" && project.IsRows(t.dir) {
		return project.VerifyRows(ctx, t.dir, n, g.logger())
	}
	st, run, err := t.open(ctx, g)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	status, err := st.Status(ctx, run)
	if err != nil {
		return nil, err
	}
	if l := status.LastStep; l == nil || n > l.Step {
		return nil, fmt.Errorf("step %d: run %s has not committed it: its last step is %d", n, run, viewRun(status).Step)
	}
	return project.VerifyStep(ctx, st, run, n, g.logger())
}
