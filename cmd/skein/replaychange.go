package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/transfer"
)

// changeFlags are those of commands that change stored logs.
type changeFlags struct {
	t           target
	q           filterFlags
	reason      string
	tenant      string
	all, dryRun bool
	compact     bool
}

func (c *changeFlags) flags(cmd *cobra.Command) {
	c.t.flags(cmd)
	c.q.flags(cmd, "")
	cmd.Flags().StringVar(&c.reason, "reason", "", "why; groups that leave their tables are counted under it")
	cmd.Flags().StringVar(&c.tenant, "tenant", "", "of every run of this tenant, in place of --run")
	cmd.Flags().BoolVar(&c.all, "all", false, "every log of the run, or of --table")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only count")
	cmd.Flags().BoolVar(&c.compact, "compact", false, "and compact every node afterwards, so that the bytes are gone")
	_ = cmd.MarkFlagRequired("reason")
	cmd.MarkFlagsMutuallyExclusive("run", "tenant")
}

// run changes what the flags name and prints what became of it.
func (c *changeFlags) run(ctx context.Context, g *globals, verb string, change func(context.Context, *project.Store, string, transfer.Filter) (transfer.ChangeReport, error)) error {
	f, err := c.q.filter(time.Now())
	if err != nil {
		return err
	}
	rest := f
	rest.Table = ""
	if rest.All() != c.all {
		return errors.New("say which logs: by --id, --author, --task, --since ..., or --all for every one (not both)")
	}
	return withStore(ctx, g, &c.t, func(ctx context.Context, st *project.Store) error {
		runs, err := c.runs(ctx, st)
		if err != nil {
			return err
		}
		var rep transfer.ChangeReport
		for _, run := range runs {
			r, err := change(ctx, st, run, f)
			if err != nil {
				return fmt.Errorf("run %s, after %d logs: %w", run, rep.Changed+r.Changed, err)
			}
			rep.Add(r)
		}
		out := map[string]any{"runs": runs, "found": rep.Found, verb: rep.Changed, "same": rep.Same, "in_use": rep.InUse, "waiting": rep.Waiting, "dry_run": c.dryRun}
		var compacted *replay.CompactResult
		if c.compact && !c.dryRun {
			res, err := st.Compact(ctx, replay.CompactRequest{})
			if err != nil {
				return err
			}
			compacted = &res
			out["compaction"] = viewCompaction(res)
		}
		err = compactionError(compacted)
		if rep.InUse > 0 && !c.dryRun {
			err = errors.Join(fmt.Errorf("%d logs are in use: run this again when their leases and tickets have ended", rep.InUse), err)
		}
		return g.outcome(out, func() {
			fmt.Printf("%d logs found, %d %s", rep.Found, rep.Changed, verb)
			if rep.InUse > 0 {
				fmt.Printf(", %d left alone: their groups are leased or being rolled out (%s ...)", rep.InUse, rep.Waiting[0])
			}
			fmt.Println()
			if compacted != nil {
				printCompaction(*compacted)
			}
		}, err)
	})
}

// runs are those whose logs are meant: the chosen one, or all of a tenant.
func (c *changeFlags) runs(ctx context.Context, st *project.Store) ([]string, error) {
	if c.tenant == "" {
		run, err := c.t.choose(ctx, st)
		return []string{run}, err
	}
	all, err := st.Runs(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, run := range all {
		s, err := st.Status(ctx, run)
		if err != nil {
			return nil, err
		}
		if s.Spec.Tenant == c.tenant {
			out = append(out, run)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("--tenant %q: no run is of this tenant", c.tenant)
	}
	return out, nil
}

func newReplayDelete(g *globals) *cobra.Command {
	var c changeFlags
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete logs for good",
		Long: `delete takes logs out of every query and table at once. Their bytes go with the next
compaction of each node; --compact does that now, on every node. Backups and
exports keep theirs until they are pruned.`,
		Example: `  skein replay delete --dir runs/demo --author 'human:ann' --reason erasure-request-12 --compact
  skein replay delete --dir runs/demo --run old --all --reason retention`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), g, "deleted", func(ctx context.Context, st *project.Store, run string, f transfer.Filter) (transfer.ChangeReport, error) {
				return transfer.Delete(ctx, st, run, f, c.reason, c.dryRun)
			})
		},
	}
	c.flags(cmd)
	return cmd
}

func newReplayRedact(g *globals) *cobra.Command {
	var c changeFlags
	var match, author string
	cmd := &cobra.Command{
		Use:   "redact",
		Short: "Replace text in logs for good",
		Long: `redact puts a twin in the place of every log that has such text: same id, group and
reward, "[redacted]" for what --match matches and for all that --of-author wrote.
A twin has no tokens, because token ids spell out the text, so its group leaves
its tables. The old bytes go with the next compaction; --compact does that now.`,
		Example: `  skein replay redact --dir runs/demo --all --match '[\w.]+@[\w.]+' --reason mail-addresses --compact
  skein replay redact --dir runs/demo --author 'human:ann' --of-author 'human:ann' --reason erasure-request-12`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rule := transfer.Rule{Author: author}
			if match != "" {
				re, err := regexp.Compile(match)
				if err != nil {
					return fmt.Errorf("--match: %w", err)
				}
				rule.Match = re
			}
			if match == "" && author == "" {
				return errors.New("say what: --match PATTERN, or --of-author AUTHOR")
			}
			return c.run(cmd.Context(), g, "redacted", func(ctx context.Context, st *project.Store, run string, f transfer.Filter) (transfer.ChangeReport, error) {
				return transfer.RedactAll(ctx, st, run, f, rule, c.reason, c.dryRun)
			})
		},
	}
	c.flags(cmd)
	cmd.Flags().StringVar(&match, "match", "", "regular expression of text to redact")
	cmd.Flags().StringVar(&author, "of-author", "", "author whose events are redacted whole, such as human:ann or 'human:*'")
	return cmd
}

func newReplayDrop(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:     "drop TABLE",
		Short:   "Take a table away, with its groups and settings; the logs stay",
		Example: "  skein replay drop offline --dir runs/demo",
		Args:    oneArg("table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				if err := st.DropTable(ctx, run, args[0]); err != nil {
					return err
				}
				return g.result(map[string]any{"run": run, "table": args[0], "dropped": true}, func() {
					fmt.Printf("table %s of run %s is dropped\n", args[0], run)
				})
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func newReplayPriorities(g *globals) *cobra.Command {
	var t target
	var file string
	cmd := &cobra.Command{
		Use:   "priorities TABLE",
		Short: "Set priorities of a table's groups, many at once",
		Long: `priorities reads lines "GROUP PRIORITY" or {"group": ..., "priority": ...} from a
file or, with -, from stdin. Groups that have left the table are skipped and
counted.`,
		Example: `  skein replay priorities offline --file new.txt --dir runs/demo
  skein replay ls offline --dir runs/demo --json | jq -c '.groups[] | {group, priority: (.priority * 0.5)}' | skein replay priorities offline --file - --dir runs/demo`,
		Args: oneArg("table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			updates, err := readPriorities(file)
			if err != nil {
				return err
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				set := 0
				for part := range slices.Chunk(updates, 1000) {
					n, err := st.UpdatePriorities(ctx, run, args[0], part)
					if set += n; err != nil {
						return fmt.Errorf("after %d priorities: %w", set, err)
					}
				}
				return g.result(map[string]any{"run": run, "table": args[0], "set": set, "gone": len(updates) - set}, func() {
					fmt.Printf("%d priorities set, %d groups are not in table %s any more\n", set, len(updates)-set, args[0])
				})
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&file, "file", "", "file with the priorities, - for stdin")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

func readPriorities(file string) (out []replay.GroupPriority, err error) {
	in := os.Stdin
	if file != "-" {
		if in, err = os.Open(file); err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer in.Close()
	}
	s := bufio.NewScanner(in)
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		if text == "" {
			continue
		}
		p, err := parsePriority(text)
		if err != nil {
			return nil, fmt.Errorf("--file %s: line %d: %w", file, line, err)
		}
		out = append(out, p)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("--file %s: %w", file, err)
	}
	return out, nil
}

func parsePriority(text string) (replay.GroupPriority, error) {
	if strings.HasPrefix(text, "{") {
		var v struct {
			Group    string   `json:"group"`
			Priority *float64 `json:"priority"`
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return replay.GroupPriority{}, err
		}
		if v.Group == "" || v.Priority == nil {
			return replay.GroupPriority{}, fmt.Errorf("%s: want a group and a priority", text)
		}
		return replay.GroupPriority{Group: v.Group, Priority: *v.Priority}, nil
	}
	i := strings.LastIndexAny(text, " \t")
	if i < 0 {
		return replay.GroupPriority{}, fmt.Errorf("%q: want GROUP PRIORITY", text)
	}
	v, err := strconv.ParseFloat(text[i+1:], 64)
	if err != nil {
		return replay.GroupPriority{}, fmt.Errorf("priority %q: want a number", text[i+1:])
	}
	return replay.GroupPriority{Group: strings.TrimSpace(text[:i]), Priority: v}, nil
}
