package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// shardView is a shard as --json prints it.
type shardView struct {
	Name       string      `json:"shard"`
	Group      string      `json:"group"`
	Runs       int         `json:"runs"`
	Unfinished int         `json:"unfinished_runs"`
	DiskFree   uint64      `json:"disk_free_bytes"`
	Error      string      `json:"error,omitempty"`
	Nodes      []shardNode `json:"nodes"`
}

type shardNode struct {
	ID       string `json:"id"`
	Addr     string `json:"addr"`
	Alive    bool   `json:"alive"`
	Voter    bool   `json:"voter"`
	Leader   bool   `json:"leader"`
	Missing  uint64 `json:"missing"`
	DiskFree uint64 `json:"disk_free_bytes"`
}

// placedView is where a run lives.
type placedView struct {
	Run     string `json:"run"`
	Shard   string `json:"shard"`
	Phase   string `json:"phase"`
	Other   string `json:"other,omitempty"` // of a move: see replay.Placement.To
	Version uint64 `json:"version"`
}

func viewPlaced(p replay.Placement) placedView {
	return placedView{p.Run, p.Shard, p.Phase.String(), p.To, p.Version}
}

func newClusterShards(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "shards",
		Short: "List the shards with their nodes, free space and runs, and where runs live",
		Long: `shards asks every shard (raft group of replay nodes) of the cluster. Runs that
are not listed below the shards live in the root.`,
		Example: `  skein cluster shards --join 10.0.0.1:7400 --token-file token`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			list, err := st.Admin.Shards(cmd.Context())
			if err != nil {
				return err
			}
			views, placed := []shardView{}, []placedView{}
			for _, s := range list.Shards {
				v := shardView{Name: s.Name, Group: s.Group, Runs: s.Runs, Unfinished: s.Unfinished, DiskFree: s.DiskFree, Error: s.Err, Nodes: []shardNode{}}
				for _, n := range s.Nodes {
					v.Nodes = append(v.Nodes, shardNode{n.ID, n.Addr, n.Alive, n.Voter, n.Leader, n.Missing, n.DiskFree})
				}
				views = append(views, v)
			}
			for _, p := range list.Placed {
				placed = append(placed, viewPlaced(p))
			}
			return g.result(map[string]any{"shards": views, "placed": placed}, func() { printShards(views, placed) })
		},
	}
	t.flags(cmd)
	return cmd
}

func printShards(views []shardView, placed []placedView) {
	for _, v := range views {
		if v.Error != "" {
			fmt.Printf("%-16s %s\n", v.Name, v.Error)
			continue
		}
		fmt.Printf("%-16s %d runs, %d unfinished, %.1f GB free\n", v.Name, v.Runs, v.Unfinished, float64(v.DiskFree)/1e9)
		for _, n := range v.Nodes {
			what := []string{"does not vote"}
			if n.Voter {
				what[0] = "votes"
			}
			if n.Leader {
				what = append(what, "leads")
			}
			if !n.Alive {
				what = append(what, "silent")
			}
			fmt.Printf("  %-14s %-22s %s, lacks %d logs\n", n.ID, n.Addr, strings.Join(what, ", "), n.Missing)
		}
	}
	for _, p := range placed {
		fmt.Printf("%-40s in %-16s %s", p.Run, p.Shard, p.Phase)
		if p.Other != "" {
			fmt.Printf(" (%s)", p.Other)
		}
		fmt.Println()
	}
}

func newClusterShard(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "shard", Short: "Add shards to the cluster"}
	cmd.AddCommand(newClusterShardAdd(g))
	return cmd
}

func newClusterShardAdd(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "add NAME ADDR...",
		Short: "Register a shard whose nodes run",
		Long: `add makes a group of replay nodes a shard of the cluster: from then on new runs
are placed there too, and runs can be moved there (skein cluster place). The
group was founded with the cluster's authority and its name, and is empty. ADDR
is the address of one of its nodes, or of several. Again, add takes over the
addresses that the shard's nodes have now.`,
		Example: `  skein node --role replay --shard b --authority keys --dir /var/lib/skein --listen 10.0.1.1:7400
  skein cluster shard add b 10.0.1.1:7400 --join 10.0.0.1:7400 --token-file token`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return fmt.Errorf("%s takes a name and the address of a node of the shard; see --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			s, err := st.Admin.AddShard(cmd.Context(), args[0], args[1:])
			if err != nil {
				return err
			}
			return g.result(map[string]any{"shard": s.Name, "group": s.Group, "addrs": s.Addrs, "version": s.Version}, func() {
				fmt.Printf("shard %s: %s\n", s.Name, strings.Join(s.Addrs, ", "))
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func newClusterPlace(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "place RUN --shard NAME",
		Short: "Move a run to a shard, or say where a new run will live",
		Long: `place moves a run with everything it has, while its workers and learner run:
their calls wait until it has arrived. When it is interrupted, the same command
goes on where it stood; until the run has switched shards, place RUN --shard with
the shard it came from takes the move back. A run that does not exist yet will be
created there.`,
		Example: `  skein cluster place demo --shard b --join 10.0.0.1:7400 --token-file token`,
		Args:    oneArg("run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := t.shard
			if to == "" {
				return errors.New("--shard: \"\": name the shard the run is to live in (skein cluster shards lists them)")
			}
			t.shard = ""
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			ctx := cmd.Context()
			if _, ok := ctx.Deadline(); !ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 24*time.Hour)
				defer cancel()
			}
			p, err := st.Admin.Place(ctx, args[0], to, func(s string) { fmt.Fprintln(os.Stderr, s) })
			if err != nil {
				return err
			}
			return g.result(viewPlaced(p), func() { fmt.Printf("run %s lives in shard %s\n", p.Run, p.Shard) })
		},
	}
	t.flags(cmd)
	return cmd
}

// shardOf is the client of the shard that --shard names.
func shardOf(cmd *cobra.Command, st *project.Store, shard string) (*cluster.Client, error) {
	if shard == "" {
		shard = replay.RootShard
	}
	return st.Admin.ShardClient(cmd.Context(), shard)
}

func newClusterReplicas(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "replicas LOG",
		Short: "Show which nodes hold a log",
		Long: `replicas asks every node of the log's shard for its bytes, which it reads and
checks: a damaged copy is none.`,
		Example: `  skein cluster replicas demo/t/0/0/1/w1 --join 10.0.0.1:7400 --token-file token`,
		Args:    oneArg("log id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			shard, nodes, err := st.Admin.Replicas(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			type nodeView struct {
				Node  string `json:"node"`
				Holds bool   `json:"holds"`
				Error string `json:"error,omitempty"`
			}
			views := []nodeView{}
			for _, n := range nodes {
				views = append(views, nodeView{n.Node, n.Holds[0], n.Err})
			}
			return g.result(map[string]any{"log_id": args[0], "shard": shard, "nodes": views}, func() {
				fmt.Printf("%s in shard %s\n", args[0], shard)
				for _, v := range views {
					what := "holds it"
					switch {
					case v.Error != "":
						what = v.Error
					case !v.Holds:
						what = "lacks it"
					}
					fmt.Printf("  %-14s %s\n", v.Node, what)
				}
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func newClusterReplace(g *globals) *cobra.Command {
	var t target
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "replace OLD NEW",
		Short: "Take a replay node out as soon as another can take its place",
		Long: `replace waits until the node NEW, which was started with --join, votes, has
applied what the others have and lacks no log; then it takes OLD out for good.
Work goes on meanwhile. OLD may be running or not; stop it afterwards.`,
		Example: `  skein node --role replay --id replay-4 --dir /data --listen 10.0.0.4:7400 --join 10.0.0.1:7400 --token-file token
  skein cluster replace replay-2 replay-4 --join 10.0.0.1:7400 --token-file token`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s takes the old node's id and the new one's; see --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait <= 0 {
				return fmt.Errorf("--wait %v: want a time above 0", wait)
			}
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			c, err := shardOf(cmd, st, t.shard)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if err := c.ReplaceNode(ctx, args[0], args[1], func(s string) { fmt.Fprintln(os.Stderr, "waiting:", s) }); err != nil {
				return err
			}
			return g.result(map[string]string{"removed": args[0], "in_its_place": args[1]}, func() { fmt.Printf("%s is out, %s in its place\n", args[0], args[1]) })
		},
	}
	t.flags(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Minute, "how long to wait for the new node")
	return cmd
}
