package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
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

// query says which logs skein replay query lists. It is a filter over a scan:
// the store keeps logs by run, table and order of arrival.
type query struct {
	table, task, group, status string
	minReward, maxReward       float64
	minVersion, maxVersion     uint64
	since, until               time.Duration // before now
	limit                      int
}

var statuses = map[string]eventlog.Status{"ok": eventlog.OK, "truncated": eventlog.Truncated, "failed": eventlog.Failed, "timeout": eventlog.TimedOut}

func (q *query) check() error {
	var errs []error
	if _, ok := statuses[q.status]; q.status != "" && !ok {
		errs = append(errs, fmt.Errorf("--status %q: want ok, truncated, failed or timeout", q.status))
	}
	if q.minReward > q.maxReward {
		errs = append(errs, fmt.Errorf("--min-reward %v above --max-reward %v", q.minReward, q.maxReward))
	}
	if q.minVersion > q.maxVersion {
		errs = append(errs, fmt.Errorf("--min-version %d above --max-version %d", q.minVersion, q.maxVersion))
	}
	if q.limit < 1 {
		errs = append(errs, fmt.Errorf("--limit %d: want at least 1", q.limit))
	}
	return errors.Join(errs...)
}

func (q *query) match(it replay.Item, now time.Time) bool {
	reward := !math.IsInf(q.minReward, -1) || !math.IsInf(q.maxReward, 1)
	age := now.Sub(it.Created)
	return (q.task == "" || it.Task == q.task) && (q.group == "" || it.Group == q.group) &&
		(q.status == "" || eventlog.Status(it.Status) == statuses[q.status]) &&
		(!reward || it.HasReward && it.Reward >= q.minReward && it.Reward <= q.maxReward) &&
		it.MinVersion >= q.minVersion && it.MaxVersion <= q.maxVersion &&
		(q.since == 0 || age <= q.since) && age >= q.until
}

func newReplayQuery(g *globals) *cobra.Command {
	var t target
	var q query
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Find logs by task, group, reward, policy version, status and time",
		Example: `  skein replay query --dir runs/demo --min-reward 1 --since 1h
  skein replay query --dir runs/demo --table eval --status failed --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return err
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				var found []replay.Item
				now := time.Now()
				for cursor := ""; len(found) < q.limit; {
					items, next, err := st.Scan(ctx, run, q.table, cursor, 500)
					if err != nil {
						return err
					}
					for _, it := range items {
						if len(found) < q.limit && q.match(it, now) {
							found = append(found, it)
						}
					}
					if cursor = next; cursor == "" {
						break
					}
				}
				views := make([]logView, len(found))
				for i, it := range found {
					views[i] = viewLog(it)
				}
				return g.result(map[string]any{"run": run, "table": q.table, "logs": views}, func() {
					for _, it := range found {
						printItem(it)
					}
				})
			})
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&q.table, "table", "train", "table the logs were appended to ("+strings.Join(tables, ", ")+", or one of skein replay tables)")
	f.StringVar(&q.task, "task", "", "task id")
	f.StringVar(&q.group, "group", "", "group id")
	f.StringVar(&q.status, "status", "", "ok, truncated, failed or timeout")
	f.Float64Var(&q.minReward, "min-reward", math.Inf(-1), "lowest reward")
	f.Float64Var(&q.maxReward, "max-reward", math.Inf(1), "highest reward")
	f.Uint64Var(&q.minVersion, "min-version", 0, "oldest policy version of any token")
	f.Uint64Var(&q.maxVersion, "max-version", math.MaxUint64, "newest policy version of any token")
	f.DurationVar(&q.since, "since", 0, "made at most so long ago")
	f.DurationVar(&q.until, "until", 0, "made at least so long ago")
	f.IntVarP(&q.limit, "limit", "n", 100, "how many at most")
	return cmd
}
