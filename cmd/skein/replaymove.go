package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay/transfer"
)

// followLine is one line of skein replay follow.
type followLine struct {
	Token string `json:"token"` // follow --from it goes on behind this log
	Run   string `json:"run"`
	logView
}

func newReplayFollow(g *globals) *cobra.Command {
	var t target
	var q filterFlags
	var from string
	var limit int
	cmd := &cobra.Command{
		Use:   "follow",
		Short: "Print logs as they are stored, one JSON object a line",
		Long: `follow prints what the store knows of every log of a run, oldest first, and goes
on with new ones until Ctrl-C. Every line has a token: --from TOKEN goes on behind
that log, and prints each later one exactly once, through restarts, changes of
leader and deletions. Tokens belong to one run and --table.`,
		Example: `  skein replay follow --dir runs/demo --run demo
  skein replay follow --join 10.0.0.1:7400 --token-file token --run demo --table train --from "$(tail -1 seen.jsonl | jq -r .token)" >> seen.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := q.filter(time.Now())
			if err != nil {
				return err
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				out := json.NewEncoder(os.Stdout)
				out.SetEscapeHTML(false)
				n := 0
				err := transfer.Follow(ctx, st, run, from, f, func(found []transfer.Found, _ string) error {
					for _, x := range found {
						if err := out.Encode(followLine{x.Token, run, viewLog(x.Record.Item)}); err != nil {
							return err
						}
						if n++; n == limit {
							return errEnough
						}
					}
					return nil
				})
				if errors.Is(err, errEnough) {
					return nil
				}
				return err
			})
		},
	}
	t.flags(cmd)
	q.flags(cmd, "")
	cmd.Flags().StringVar(&from, "from", "", "token to go on behind")
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "end after so many (0 = never)")
	return cmd
}

func newReplayExport(g *globals) *cobra.Command {
	var t target
	var q filterFlags
	var to string
	o := transfer.ExportOptions{Format: transfer.JSONL}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a run's logs and tables to a folder, as JSON lines or Parquet",
		Long: `export writes logs in order of acceptance, with all that the store knows of them,
and the groups of all tables (docs/replay-operations.md lists the columns). The
store may be in use. An interrupted export goes on when it is started again.`,
		Example: `  skein replay export --dir runs/demo --to demo-export
  skein replay export --dir runs/demo --to good --format parquet --min-reward 1 --table train`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Filter, err = q.filter(time.Now()); err != nil {
				return err
			}
			if to == "" {
				return errors.New("--to: \"\": name a folder for the export")
			}
			o.Progress = func(n int) { progress("%d logs written", n) }
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				m, err := transfer.Export(ctx, st, run, to, o)
				endProgress()
				if err != nil {
					return err
				}
				return g.result(map[string]any{"run": run, "to": to, "format": m.Format, "logs": m.Logs, "bytes": m.Bytes, "groups": m.Groups, "files": len(m.Files), "token": m.Token}, func() {
					fmt.Printf("%d logs (%d bytes) and %d groups of run %s in %s\n", m.Logs, m.Bytes, m.Groups, run, to)
				})
			})
		},
	}
	t.flags(cmd)
	q.flags(cmd, "")
	cmd.Flags().StringVar(&to, "to", "", "folder")
	cmd.Flags().StringVar(&o.Format, "format", transfer.JSONL, "jsonl or parquet")
	return cmd
}

func newReplayImport(g *globals) *cobra.Command {
	var t target
	var q filterFlags
	var from string
	var o transfer.ImportOptions
	var finish bool
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Store what skein replay export has written, here or in another cluster",
		Long: `import keeps ids, groups, rewards and the state of tables, bit for bit, and makes
the run when it is not there (--run gives it another name). Importing again changes
nothing. Groups of train that were not trained arrive as dropped: to train on what
was imported, put it into a table (skein replay set with collect, or insert).`,
		Example: "  skein replay import --from demo-export --join 10.0.1.1:7400 --token-file token",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Filter, err = q.filter(time.Now()); err != nil {
				return err
			}
			if from == "" {
				return errors.New("--from: \"\": name the folder of an export")
			}
			o.Run = t.run
			o.Progress = func(n, all int) { progress("%d of %d logs read", n, all) }
			st, err := t.connect(cmd.Context(), g)
			if err != nil {
				return err
			}
			defer st.Close()
			rep, err := transfer.Import(cmd.Context(), st, from, o)
			endProgress()
			if err == nil && finish {
				err = st.FinishRun(cmd.Context(), rep.Run)
			}
			if err != nil {
				return err
			}
			if rep.Rejected > 0 {
				err = fmt.Errorf("%d logs or groups were refused: see reasons", rep.Rejected)
			}
			return g.outcome(rep, func() {
				fmt.Printf("run %s: %d logs and %d groups imported; there already: %d logs, %d groups; %d groups lack a log\n", rep.Run, rep.Logs, rep.Groups, rep.Duplicates, rep.Present, rep.Incomplete)
				for _, r := range rep.Reasons {
					fmt.Printf("  refused: %s\n", plain(errors.New(r)))
				}
			}, err)
		},
	}
	t.flags(cmd)
	q.flags(cmd, "")
	cmd.Flags().StringVar(&from, "from", "", "folder of an export")
	cmd.Flags().StringVar(&o.Tenant, "tenant", "", "whose run it becomes when it is new")
	cmd.Flags().BoolVar(&finish, "finish", false, "end the run, so that no worker takes it up (its tables give no leases then)")
	return cmd
}

// progress writes over the last progress line on a terminal, and nothing
// elsewhere.
func progress(format string, args ...any) {
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		fmt.Fprintf(os.Stderr, "\r"+format+"\x1b[K", args...)
	}
}

func endProgress() { progress("") }
