package main

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

func newReplay(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Look into the replay store, set up its tables, move and keep what is in it",
		Long: `The replay store keeps a run's EventLogs and the tables they are sampled from.
Every run has the tables train and eval; others are set up with
skein replay set, and their settings can be changed while they are in use.`,
	}
	cmd.AddCommand(
		newReplayTables(g), newReplayStat(g), newReplayQuota(g), newReplayShow(g), newReplaySet(g), newReplayDrop(g), newReplayPriorities(g),
		newReplayLs(g), newReplayQuery(g), newReplayFollow(g), newReplayExport(g), newReplayImport(g),
		newReplayDelete(g), newReplayRedact(g), newReplayCompact(g), newReplayVerify(g), newReplayRepair(g),
		newReplayBackup(g), newReplayBackups(g), newReplayRestore(g), newReplayPrune(g), newReplayBench(g),
	)
	return cmd
}

// tableView is a table as --json prints it.
type tableView struct {
	Run           string         `json:"run"`
	Table         string         `json:"table"`
	Config        any            `json:"config"`
	Version       uint64         `json:"version"`
	Open          uint64         `json:"open"`
	Ready         uint64         `json:"ready"`
	Leased        uint64         `json:"leased"`
	Bytes         uint64         `json:"bytes"`
	Inserted      uint64         `json:"inserted"`
	Sampled       uint64         `json:"sampled"`
	Consumed      uint64         `json:"consumed"`
	Epoch         uint64         `json:"epoch"`
	Removed       map[string]int `json:"removed"`
	Refused       map[string]int `json:"refused"`
	Duplicates    uint64         `json:"duplicates"`
	InsertBlocked string         `json:"insert_blocked,omitempty"`
	SampleBlocked string         `json:"sample_blocked,omitempty"`
	Indexing      bool           `json:"indexing"`
}

func viewTable(t replay.TableStatus) tableView {
	return tableView{
		Run: t.Run, Table: t.Table, Config: t.Config, Version: t.Version, Open: t.Open, Ready: t.Ready, Leased: t.Leased, Bytes: t.Bytes,
		Inserted: t.Inserted, Sampled: t.Sampled, Consumed: t.Consumed, Epoch: t.Epoch, Removed: t.Removed, Refused: t.Refused,
		Duplicates: t.Duplicates, InsertBlocked: t.InsertBlocked, SampleBlocked: t.SampleBlocked, Indexing: t.Indexing,
	}
}

func newReplayTables(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:     "tables",
		Short:   "List a run's tables: what is in them and what they wait for",
		Example: "  skein replay tables --dir runs/demo",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				ts, err := st.Tables(ctx, run)
				if err != nil {
					return err
				}
				views := make([]tableView, len(ts))
				for i, x := range ts {
					views[i] = viewTable(x)
				}
				return g.result(map[string]any{"run": run, "tables": views}, func() { printTables(ts) })
			})
		},
	}
	t.flags(cmd)
	return cmd
}

// withRun opens the store of a run and closes it again.
func withRun(ctx context.Context, g *globals, t *target, do func(context.Context, *project.Store, string) error) error {
	st, run, err := t.open(ctx, g)
	if err != nil {
		return err
	}
	defer st.Close()
	return do(ctx, st, run)
}

func printTables(ts []replay.TableStatus) {
	fmt.Printf("%-20s %-12s %-18s %9s %9s %9s %10s %10s\n", "table", "sampler", "limiter", "open", "ready", "leased", "sampled", "bytes")
	for _, t := range ts {
		fmt.Printf("%-20s %-12s %-18s %9d %9d %9d %10d %10d\n", t.Table, t.Config.Sampler.Kind, t.Config.Limiter.Kind, t.Open, t.Ready, t.Leased, t.Sampled, t.Bytes)
		if t.InsertBlocked != "" {
			fmt.Printf("  producers wait: %s\n", t.InsertBlocked)
		}
		if t.SampleBlocked != "" {
			fmt.Printf("  the learner waits: %s\n", t.SampleBlocked)
		}
		printCounts("  left", t.Removed)
		printCounts("  told to come back", t.Refused)
	}
}

// printCounts prints counted reasons in order of their names.
func printCounts(what string, counts map[string]int) {
	if len(counts) == 0 {
		return
	}
	var parts []string
	for k, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", k, n))
	}
	sort.Strings(parts)
	fmt.Printf("%s: %s\n", what, strings.Join(parts, ", "))
}

func newReplayStat(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Sum up every run of the store",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			st, err := t.connect(ctx, g)
			if err != nil {
				return err
			}
			defer st.Close()
			runs, err := st.Runs(ctx)
			if err != nil {
				return err
			}
			views := []map[string]any{}
			var lines []string
			for _, run := range runs {
				s, err := st.Status(ctx, run)
				if err != nil {
					return err
				}
				ts, err := st.Tables(ctx, run)
				if err != nil {
					return err
				}
				names := make([]string, len(ts))
				for i, x := range ts {
					names[i] = x.Table
				}
				views = append(views, map[string]any{"run": run, "finished": s.Finished, "logs": s.Appended, "failed": s.FailedRollouts,
					"duplicates": s.Duplicates, "late": s.LateLogs, "rejected": s.RejectedLogs, "policy_version": s.Latest.Version, "tables": names})
				lines = append(lines, fmt.Sprintf("%-24s %10d %10d %10d %10d %8d  %s", run, s.Appended, s.FailedRollouts, s.Duplicates, s.RejectedLogs, s.Latest.Version, strings.Join(names, " ")))
			}
			return g.result(map[string]any{"runs": views}, func() {
				fmt.Printf("%-24s %10s %10s %10s %10s %8s  %s\n", "run", "logs", "failed", "duplicate", "rejected", "version", "tables")
				for _, l := range lines {
					fmt.Println(l)
				}
			})
		},
	}
	t.flags(cmd)
	return cmd
}
