package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/transfer"
)

// groupView is a group of a table as --json prints it.
type groupView struct {
	Group        string     `json:"group"`
	State        string     `json:"state"`
	Reason       string     `json:"reason,omitempty"`
	Seq          uint64     `json:"seq"`
	Size         uint32     `json:"size"`
	LogIDs       []string   `json:"log_ids"`
	Priority     float64    `json:"priority"`
	TimesSampled uint32     `json:"times_sampled"`
	Inserted     *time.Time `json:"inserted,omitempty"`
	Bytes        uint64     `json:"bytes"`
	Lease        uint64     `json:"lease,omitempty"`
}

func newReplayLs(g *globals) *cobra.Command {
	var t target
	var after, state string
	var limit int
	cmd := &cobra.Command{
		Use:     "ls TABLE",
		Short:   "List the groups of a table set up with skein replay set",
		Example: "  skein replay ls offline --dir runs/demo --state dropped",
		Args:    oneArg("table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit %d: want at least 1", limit)
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				views := []groupView{}
				next := after
				for {
					gs, cursor, err := st.TableGroups(ctx, run, args[0], next, 500)
					if err != nil {
						return err
					}
					for _, x := range gs {
						next = x.Group
						if state == "" || state == x.State {
							views = append(views, viewGroup(x))
						}
						if len(views) == limit {
							return printGroups(g, run, args[0], views, next)
						}
					}
					if cursor == "" {
						return printGroups(g, run, args[0], views, "")
					}
				}
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&after, "after", "", "go on after this group")
	cmd.Flags().StringVar(&state, "state", "", "only open, ready, leased, consumed or dropped ones")
	cmd.Flags().IntVarP(&limit, "limit", "n", 100, "how many at most")
	return cmd
}

func viewGroup(x replay.TableGroup) groupView {
	v := groupView{Group: x.Group, State: x.State, Reason: x.Reason, Seq: x.Seq, Size: x.Size, LogIDs: x.LogIDs, Priority: x.Priority,
		TimesSampled: x.TimesSampled, Bytes: x.Bytes, Lease: x.Lease}
	if !x.Inserted.IsZero() {
		v.Inserted = &x.Inserted
	}
	return v
}

func printGroups(g *globals, run, table string, views []groupView, next string) error {
	return g.result(map[string]any{"run": run, "table": table, "groups": views, "next": next}, func() {
		for _, v := range views {
			fmt.Printf("%-40s %-9s %3d logs  priority %-10.4g sampled %d  %s\n", v.Group, v.State, len(v.LogIDs), v.Priority, v.TimesSampled, v.Reason)
		}
		if next != "" {
			fmt.Printf("more: --after %s\n", next)
		}
	})
}

func newReplayQuery(g *globals) *cobra.Command {
	var t target
	var q filterFlags
	var limit int
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Find logs by task, group, author, reward, policy version, status and time",
		Example: `  skein replay query --dir runs/demo --min-reward 1 --since 1h
  skein replay query --dir runs/demo --table eval --status failed --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := q.filter(time.Now())
			if err != nil {
				return err
			}
			if limit < 1 {
				return fmt.Errorf("--limit %d: want at least 1", limit)
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				var found []replay.Item
				err := transfer.Find(ctx, st, run, "", f, false, func(some []transfer.Found, _ string) error {
					for _, x := range some {
						if found = append(found, x.Record.Item); len(found) == limit {
							return errEnough
						}
					}
					return nil
				})
				if err != nil && !errors.Is(err, errEnough) {
					return err
				}
				views := make([]logView, len(found))
				for i, it := range found {
					views[i] = viewLog(it)
				}
				return g.result(map[string]any{"run": run, "table": f.Table, "logs": views}, func() {
					for _, it := range found {
						printItem(it)
					}
				})
			})
		},
	}
	t.flags(cmd)
	q.flags(cmd, "train")
	cmd.Flags().IntVarP(&limit, "limit", "n", 100, "how many at most")
	return cmd
}

// errEnough ends a search.
var errEnough = errors.New("enough")
