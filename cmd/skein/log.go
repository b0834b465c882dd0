package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

func newLog(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Read the EventLogs of a run",
		Example: `  skein log tail --dir runs/demo
  skein log show --dir runs/demo LOG_ID
  skein log export --dir runs/demo --format messages > rollouts.jsonl`,
	}
	cmd.AddCommand(newLogShow(g), newLogTail(g), newLogExport(g))
	return cmd
}

func newLogShow(g *globals) *cobra.Command {
	var t target
	var tokens bool
	cmd := &cobra.Command{
		Use:   "show LOG_ID",
		Short: "Show one EventLog: its events, tokens, versions and rewards",
		Args:  oneArg("LOG_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, _, err := t.open(cmd.Context(), g)
			if err != nil {
				return err
			}
			defer st.Close()
			l, err := fetchLog(cmd.Context(), st, args[0])
			if err != nil {
				return err
			}
			return g.result(l, func() { printLog(os.Stdout, l, tokens) })
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&tokens, "tokens", false, "list every token with its logprob and policy version")
	return cmd
}

func fetchLog(ctx context.Context, st replay.Store, id string) (*eventlog.Log, error) {
	recs, err := st.Fetch(ctx, []string{id})
	if errors.Is(err, replay.ErrNotFound) {
		return nil, fmt.Errorf("log %q: not found: skein log tail lists the ids", id)
	}
	if err != nil {
		return nil, err
	}
	return eventlog.Decode(recs[0].Bytes)
}

func newLogTail(g *globals) *cobra.Command {
	var t target
	var table string
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "List a run's newest EventLogs, and follow it",
		Long: `tail lists a run's newest EventLogs. With --json it prints one object with the
run and its logs; with --follow as well, one object a log.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if err := checkTable(table); err != nil {
				return err
			}
			st, run, err := t.open(ctx, g)
			if err != nil {
				return err
			}
			defer st.Close()
			var last []replay.Item
			cursor := ""
			for {
				items, next, err := st.Scan(ctx, run, table, cursor, 500)
				if err != nil {
					return err
				}
				last = append(last, items...)
				last = last[max(0, len(last)-lines):]
				if next == "" {
					break
				}
				cursor = next
			}
			if g.json && !follow {
				logs := make([]logView, len(last))
				for i, it := range last {
					logs[i] = viewLog(it)
				}
				return g.result(map[string]any{"run": run, "table": table, "logs": logs}, nil)
			}
			for _, it := range last {
				if err := g.result(viewLog(it), func() { printItem(it) }); err != nil {
					return err
				}
			}
			if follow {
				return followLogs(ctx, g, st, run, table, last)
			}
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&table, "table", "train", "table: "+strings.Join(tables, ", "))
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until Ctrl-C")
	cmd.Flags().IntVarP(&lines, "lines", "n", 20, "how many of the newest to list")
	return cmd
}

// followLogs prints items as they appear until ctx ends.
func followLogs(ctx context.Context, g *globals, st replay.Store, run, table string, seen []replay.Item) error {
	known := map[string]bool{}
	for _, it := range seen {
		known[it.LogID] = true
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	cursor, first := "", true
	for {
		items, next, err := st.Scan(ctx, run, table, cursor, 500)
		if err != nil {
			return err
		}
		for _, it := range items {
			if !known[it.LogID] {
				known[it.LogID] = true
				if first {
					continue
				}
				if err := g.result(viewLog(it), func() { printItem(it) }); err != nil {
					return err
				}
			}
		}
		if next != "" {
			cursor = next
			continue
		}
		first = false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func printItem(it replay.Item) {
	reward := "      -"
	if it.HasReward {
		reward = fmt.Sprintf("%7.3f", it.Reward)
	}
	fmt.Printf("%s  %s  v%-4d %s  %4d tok  %-9s %s %s\n", it.Created.Format(time.TimeOnly), it.LogID, it.MaxVersion, reward,
		it.Tokens, eventlog.Status(it.Status), it.Task, it.Cause)
}

func newLogExport(g *globals) *cobra.Command {
	var t target
	var table, format, out string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a run's EventLogs as JSON lines",
		Long: `export writes one line per EventLog:

  eventlog    the whole log, with tokens, logprobs and versions
  messages    OpenAI-style chat messages with tool_calls
  trajectory  AgentTune's dictionary form
  sft         SFT rows with segment weights and loss mask

With --output and --json it also prints one object that says what was written.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			if err := errors.Join(checkTable(table), checkFormat(format)); err != nil {
				return err
			}
			st, run, err := t.open(ctx, g)
			if err != nil {
				return err
			}
			defer st.Close()
			var w io.Writer = os.Stdout
			if out != "" {
				f, err := os.Create(out)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				w = f
			}
			buf := bufio.NewWriter(w)
			n, err := exportLogs(ctx, st, run, table, format, buf)
			if err := errors.Join(err, buf.Flush()); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%d logs of run %s written\n", n, run)
			if out == "" {
				return nil // stdout is the logs', and each is an object of its own
			}
			return g.result(map[string]any{"run": run, "table": table, "format": format, "logs": n, "file": out}, func() {})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&table, "table", "train", "table: "+strings.Join(tables, ", "))
	cmd.Flags().StringVar(&format, "format", "messages", strings.Join(exportFormats, ", "))
	cmd.Flags().StringVarP(&out, "output", "o", "", "file (default: stdout)")
	return cmd
}
