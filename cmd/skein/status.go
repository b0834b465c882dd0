package main

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

func newStatus(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a run's progress and the health of its nodes",
		Example: `  skein status --dir runs/demo
  skein status --dir runs/store-dpo
  skein status --join 10.0.0.1:7400 --token-file token --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if t.dir != "" && project.IsRows(t.dir) {
				s, err := project.RowsStatusOf(t.dir)
				if err != nil {
					return err
				}
				return g.result(statusView{Run: s}, func() { printRows(s) })
			}
			st, err := t.connect(ctx, g)
			if err != nil {
				return err
			}
			defer st.Close()
			var nodes *cluster.ClusterStatus
			if st.Cluster != nil {
				cs, err := st.Cluster(ctx)
				if err != nil {
					return err
				}
				nodes = &cs
			}
			var view statusView
			if nodes != nil {
				view.Cluster = viewCluster(*nodes)
			}
			run, err := t.choose(ctx, st)
			if errors.Is(err, errNoRun) && nodes != nil {
				return g.result(view, func() { fmt.Println("no run yet"); printNodes(nodes) })
			}
			if err != nil {
				return err
			}
			status, err := st.Status(ctx, run)
			if err != nil {
				return err
			}
			view.Run = viewRun(status)
			return g.result(view, func() { printRun(status); printNodes(nodes) })
		},
	}
	t.flags(cmd)
	return cmd
}

func printRun(s replay.RunStatus) {
	state := "running"
	if s.Finished {
		state = "finished"
	}
	fmt.Printf("run %s: %s, policy version %d\n", s.Spec.Run, state, s.Latest.Version)
	if l := s.LastStep; l != nil {
		fmt.Printf("  last step %d at %s: reward %.3f\n", l.Step, l.Committed.Format(time.DateTime), l.Metrics["reward"])
	}
	fmt.Printf("  groups: %d rolling out, %d ready, %d leased, %d trained, %d dropped\n",
		s.RunningGroups, s.ReadyGroups, s.LeasedGroups, s.ConsumedGroups, s.DroppedGroups)
	fmt.Printf("  rollouts: %d stored, %d failed, %d duplicates refused\n", s.Appended, s.FailedRollouts, s.Duplicates)
	for why, n := range s.FailureReasons {
		fmt.Printf("    %d x %s\n", n, why)
	}
	if len(s.StalenessCounts) > 0 {
		var ages []uint64
		for a := range s.StalenessCounts {
			ages = append(ages, a)
		}
		sort.Slice(ages, func(i, j int) bool { return ages[i] < ages[j] })
		var parts []string
		for _, a := range ages {
			parts = append(parts, fmt.Sprintf("%d:%d", a, s.StalenessCounts[a]))
		}
		fmt.Printf("  staleness of trained rollouts (versions:count): %s\n", strings.Join(parts, " "))
	}
}

func printRows(s project.RowsStatus) {
	state := "stopped"
	switch {
	case s.Finished:
		state = "finished"
	case s.Running:
		state = "running"
	}
	fmt.Printf("run %s: %s, %s on rows\n", s.Run, state, s.Algorithm)
	if s.At != nil {
		fmt.Printf("  last step %d of %d at %s, epoch %.2f: loss %.4f\n", s.Step, s.Steps, s.At.Local().Format(time.DateTime), s.Epoch, s.Metrics["loss"])
	}
	if x, ok := s.Eval["eval_loss"]; ok {
		fmt.Printf("  last evaluation: loss %.4f\n", x)
	}
	if d := s.Dataset; d != nil {
		fmt.Printf("  rows: %s, %s\n", d.Name, d.Digest)
	}
	if n := len(s.Saved); n > 0 {
		fmt.Printf("  checkpoints: %d, the last of step %d\n", n, s.Saved[n-1])
	}
}

func printNodes(c *cluster.ClusterStatus) {
	if c == nil {
		fmt.Println("  nodes: not running")
		return
	}
	fmt.Printf("nodes of cluster %s (term %d):\n", c.Cluster, c.Term)
	fmt.Printf("  %-20s %-8s %-6s %-22s %8s %10s %s\n", "id", "role", "alive", "address", "version", "tok/s", "")
	for _, n := range c.Nodes {
		var notes []string
		if n.Leader {
			notes = append(notes, "leader")
		}
		if n.Missing > 0 {
			notes = append(notes, fmt.Sprintf("pulling %d logs", n.Missing))
		}
		if c := n.Metrics["capacity"]; c > 0 {
			notes = append(notes, fmt.Sprintf("engine server, capacity %g, price %g", c, n.Metrics["price"]))
		}
		if n.LastError != "" {
			notes = append(notes, "last error: "+n.LastError)
		}
		fmt.Printf("  %-20s %-8s %-6v %-22s %8d %10.0f %s\n", n.ID, n.Role, n.Alive, n.Addr, n.PolicyVersion, n.TokensPerSecond, strings.Join(notes, "; "))
	}
}
