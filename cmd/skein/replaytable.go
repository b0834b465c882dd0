package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

func newReplayShow(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:     "show TABLE",
		Short:   "Show a table's settings, with every version they had",
		Example: "  skein replay show offline --dir runs/demo",
		Args:    oneArg("table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				now, err := findTable(ctx, st, run, args[0])
				if err != nil {
					return err
				}
				var versions []replay.TableVersion
				if now.Table != replay.TableTrain {
					if versions, err = st.TableHistory(ctx, run, now.Table); err != nil {
						return err
					}
				}
				history := []map[string]any{}
				for _, v := range versions {
					history = append(history, map[string]any{"version": v.Version, "set": v.Set, "config": v.Config})
				}
				return g.result(map[string]any{"table": viewTable(now), "history": history}, func() {
					printTables([]replay.TableStatus{now})
					fmt.Print(asYAML(now.Config))
					for _, v := range versions {
						fmt.Printf("# version %d since %s\n", v.Version, v.Set.Format(time.DateTime))
					}
				})
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func findTable(ctx context.Context, st *project.Store, run, name string) (replay.TableStatus, error) {
	ts, err := st.Tables(ctx, run)
	if err != nil {
		return replay.TableStatus{}, err
	}
	var names []string
	for _, x := range ts {
		if x.Table == name {
			return x, nil
		}
		names = append(names, x.Table)
	}
	return replay.TableStatus{}, fmt.Errorf("table %q: run %s has none of this name, it has %q; set one up with skein replay set", name, run, names)
}

// asYAML is a configuration as a file for skein replay set.
func asYAML(c table.Config) string {
	b, err := c.Encode()
	if err != nil {
		return fmt.Sprintf("# %v\n", err)
	}
	var node yaml.Node // JSON is YAML; its order stays
	if err := yaml.Unmarshal(b, &node); err != nil {
		return string(b) + "\n"
	}
	plainStyle(&node)
	out, err := yaml.Marshal(&node)
	if err != nil {
		return string(b) + "\n"
	}
	return string(out)
}

// plainStyle takes the brackets and quotes of JSON away.
func plainStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plainStyle(c)
	}
}

func newReplaySet(g *globals) *cobra.Command {
	var t target
	var file string
	cmd := &cobra.Command{
		Use:   "set TABLE",
		Short: "Set up a table, or change its settings while it is in use",
		Long: `set gives a table the settings of a YAML file. What the file leaves out keeps
its value, or its default when the table is new. All settings take effect with
the next call; after another sampler or remover the table pauses sampling while
its index is built. skein replay show prints a file to start from.`,
		Example: `  skein replay set offline --file offline.yaml --dir runs/demo

  # offline.yaml: prioritised replay of up to 100000 groups, each up to 8 times
  sampler: {kind: prioritized, exponent: 0.6}
  limiter: {kind: min_size, min_size: 1000}
  max_times_sampled: 8
  max_items: 100000
  on_full: remove
  priority_from: max`,
		Args: oneArg("table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := readTableFile(file)
			if err != nil {
				return err
			}
			return withRun(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store, run string) error {
				base, version := table.Default(), uint64(0)
				ts, err := st.Tables(ctx, run)
				if err != nil {
					return err
				}
				for _, x := range ts {
					if x.Table == args[0] {
						base, version = x.Config, x.Version
					}
				}
				cfg, err := table.Decode(change, base)
				if err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				if version, err = st.SetTable(ctx, run, args[0], cfg, version); err != nil {
					return err
				}
				return g.result(map[string]any{"run": run, "table": args[0], "version": version, "config": cfg}, func() {
					fmt.Printf("table %s of run %s has settings %d\n", args[0], run, version)
				})
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&file, "file", "", "YAML file with the settings")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

// readTableFile reads YAML and gives the same as JSON.
func readTableFile(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(b, &fields); err != nil {
		return nil, fmt.Errorf("--file %s: %w", file, err)
	}
	out, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", file, err)
	}
	return out, nil
}
