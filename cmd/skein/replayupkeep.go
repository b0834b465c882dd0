package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/load"
)

// withStore opens a store, whatever its runs.
func withStore(ctx context.Context, g *globals, t *target, do func(context.Context, *project.Store) error) error {
	st, err := t.connect(ctx, g)
	if err != nil {
		return err
	}
	defer st.Close()
	return do(ctx, st)
}

// outcome prints what a command did, also when err says that not all of it went
// well: the last line of stdout is the result either way.
func (g *globals) outcome(v any, text func(), err error) error {
	if rerr := g.result(v, text); err == nil || rerr != nil {
		return rerr
	}
	fmt.Fprintln(os.Stderr, "skein:", plain(err))
	return errReported
}

// nodeCompactionView is one node's part as --json prints it.
type nodeCompactionView struct {
	Node     string `json:"node"`
	Error    string `json:"error,omitempty"`
	Segments int    `json:"segments_removed"`
	Moved    int    `json:"records_moved"`
	Dropped  int    `json:"records_dropped"`
	Bytes    int64  `json:"bytes_freed"`
	Held     int    `json:"deleted_records_held"`
	Damaged  int    `json:"damaged_segments"`
}

func viewCompaction(r replay.CompactResult) map[string]any {
	nodes := []nodeCompactionView{}
	for _, n := range r.Nodes {
		nodes = append(nodes, nodeCompactionView{n.Node, n.Err, n.Segments, n.Moved, n.Dropped, n.Bytes, n.Held, n.Damaged})
	}
	return map[string]any{"nodes": nodes, "ids_forgotten": r.Forgotten}
}

func printCompaction(r replay.CompactResult) {
	for _, n := range r.Nodes {
		fmt.Printf("node %s: %d segments removed, %d records moved, %d dropped, %d bytes freed\n", n.Node, n.Segments, n.Moved, n.Dropped, n.Bytes)
		if n.Held > 0 || n.Damaged > 0 {
			fmt.Printf("  %d damaged segments were left alone, with %d records of deleted logs: run skein replay repair, then compact again\n", n.Damaged, n.Held)
		}
		if n.Err != "" {
			fmt.Printf("  failed: %s\n", n.Err)
		}
	}
	if r.Forgotten > 0 {
		fmt.Printf("%d ids of deleted logs forgotten\n", r.Forgotten)
	}
}

// compactionError says what a compaction left undone.
func compactionError(r *replay.CompactResult) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, n := range r.Nodes {
		if n.Err != "" {
			errs = append(errs, fmt.Errorf("node %s: %s", n.Node, n.Err))
		} else if n.Held > 0 || n.Damaged > 0 {
			errs = append(errs, fmt.Errorf("node %s: %d damaged segments left alone", n.Node, n.Damaged))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("not compacted everywhere: bytes of deleted logs may remain: %w", errors.Join(errs...))
}

func newReplayCompact(g *globals) *cobra.Command {
	var t target
	q := replay.CompactRequest{Dead: 0.3}
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Rewrite segment files on every node, so that deleted bytes are gone",
		Long: `compact drops the bytes of deleted and redacted logs from every node's segment files
now, and what was never committed for --grace. Nodes do the same once a day for
files that are old enough. Ids of logs deleted longer ago than --forget-after are
forgotten once no node holds bytes of deleted logs.`,
		Example: "  skein replay compact --dir runs/demo --dead 0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store) error {
				res, err := st.Compact(ctx, q)
				if err != nil {
					return err
				}
				return g.outcome(viewCompaction(res), func() { printCompaction(res) }, compactionError(&res))
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().DurationVar(&q.Grace, "grace", time.Hour, "how long bytes may wait for their commit")
	cmd.Flags().Float64Var(&q.Dead, "dead", q.Dead, "share of a file's bytes not needed from which on it is rewritten; 0 = any")
	cmd.Flags().DurationVar(&q.ForgetAfter, "forget-after", 24*time.Hour, "how long ids of deleted logs are kept, so that late copies stay out; below 0 = for ever")
	return cmd
}

// nodeVerifyView is one node's part as --json prints it.
type nodeVerifyView struct {
	Node         string   `json:"node"`
	Error        string   `json:"error,omitempty"`
	Index        uint64   `json:"raft_index"`
	State        string   `json:"state_digest"`
	Records      int      `json:"records"`
	Logs         int      `json:"logs"`
	Bytes        int64    `json:"bytes"`
	Missing      int      `json:"missing_logs"`
	Bad          []string `json:"bad,omitempty"`
	Gaps         int      `json:"gaps"`
	GapBytes     int64    `json:"gap_bytes"`
	Blobs        int      `json:"blobs"`
	MissingBlobs int      `json:"missing_blobs"`
}

func newReplayVerify(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check every checksum and digest on every node, and that nodes agree",
		Long: `verify reads every segment, log and blob on every node, checks CRCs and digests, and
compares the nodes' states as of one raft index. The store may be in use. What is
damaged is marked and pulled from other nodes (see skein replay repair).`,
		Example: "  skein replay verify --dir runs/demo --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store) error {
				res, err := st.Verify(ctx)
				if err != nil {
					return err
				}
				nodes := []nodeVerifyView{}
				for _, n := range res.Nodes {
					nodes = append(nodes, nodeVerifyView{n.Node, n.Err, n.Index, n.State, n.Records, n.Logs, n.Bytes, n.Missing, n.Bad, n.Gaps, n.GapBytes, n.Blobs, n.MissingBlobs})
				}
				if !res.OK() {
					err = errors.New("not everything is whole, or the nodes differ: run skein replay repair, then verify again")
				}
				return g.outcome(map[string]any{"ok": res.OK(), "raft_index": res.Index, "nodes": nodes}, func() {
					for _, n := range nodes {
						fmt.Printf("node %s: %d logs (%d bytes), %d missing; %d blobs, %d missing; %d gaps (%d bytes); state %.20s at raft index %d\n",
							n.Node, n.Logs, n.Bytes, n.Missing, n.Blobs, n.MissingBlobs, n.Gaps, n.GapBytes, n.State, n.Index)
						if len(n.Bad) > 0 {
							fmt.Printf("  damaged or missing: %s\n", strings.Join(n.Bad, " "))
						}
						if n.Error != "" {
							fmt.Printf("  failed: %s\n", n.Error)
						}
					}
				}, err)
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func newReplayRepair(g *globals) *cobra.Command {
	var t target
	var nodeDir string
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Pull what is damaged from other nodes, or rebuild a stopped node's index",
		Long: `repair has every running node check what it holds and pull what is damaged or lacking
from the others. With --node-dir it makes the index of a stopped node anew from
its segment files, when that was lost or is damaged; the old one is set aside.`,
		Example: `  skein replay repair --dir runs/demo
  skein replay repair --node-dir /var/lib/skein/replay`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodeDir != "" {
				rep, err := project.RebuildIndex(nodeDir, g.logger())
				if err != nil {
					return err
				}
				return g.result(map[string]any{"node_dir": nodeDir, "records": rep.Records, "gaps": rep.Gaps, "old_index": rep.Aside}, func() {
					fmt.Printf("%d records indexed, %d stretches of damage; the old index is %s\nstart the node: it applies its log again\n", rep.Records, rep.Gaps, rep.Aside)
				})
			}
			return withStore(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store) error {
				res, err := st.Repair(ctx)
				if err != nil {
					return err
				}
				nodes := []map[string]any{}
				whole := true
				for _, n := range res {
					whole = whole && n.Err == "" && n.Left == 0 && n.BlobsLeft == 0
					nodes = append(nodes, map[string]any{"node": n.Node, "error": n.Err, "damaged": n.Damaged, "pulled": n.Pulled, "left": n.Left, "blobs_pulled": n.Blobs, "blobs_left": n.BlobsLeft})
				}
				if !whole {
					err = errors.New("not everything could be repaired: what no node has is in a backup only (skein replay restore)")
				}
				return g.outcome(map[string]any{"ok": whole, "nodes": nodes}, func() {
					for _, n := range res {
						fmt.Printf("node %s: %d logs damaged or missing, %d pulled, %d left; %d blobs pulled, %d left %s\n", n.Node, n.Damaged, n.Pulled, n.Left, n.Blobs, n.BlobsLeft, n.Err)
					}
				}, err)
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&nodeDir, "node-dir", "", "the replay folder of a stopped node")
	cmd.MarkFlagsMutuallyExclusive("node-dir", "dir")
	cmd.MarkFlagsMutuallyExclusive("node-dir", "join")
	return cmd
}

func newReplayBench(g *globals) *cobra.Command {
	var t target
	o := load.DefaultOptions()
	var local string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put a store under load for some seconds and say how it did",
		Long: `bench appends for a while and then leases, fetches and commits what it appended, as
a run of its own, and cleans up. Against --local it makes a store in that folder,
which must be new; against --dir or --join it loads a running one, so mind who
else uses it.`,
		Example: `  skein replay bench --local /mnt/disk/bench --json
  skein replay bench --join 10.0.0.1:7400 --token-file token --producers 64 --for 20s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			run := func(ctx context.Context, st *project.Store) error {
				rep, err := load.Run(ctx, st, o)
				if err != nil {
					return err
				}
				return g.result(rep, func() {
					for _, p := range []struct {
						what string
						r    load.Rate
					}{{"append", rep.Append}, {"lease+fetch+commit", rep.Sample}, {"commit", rep.Commit}} {
						fmt.Printf("%-20s %9.0f logs/s %8.1f MB/s   p50 %7.2f ms   p99 %7.2f ms   (%d logs in %d calls)\n", p.what, p.r.PerSecond, p.r.MBPerS, p.r.P50Ms, p.r.P99Ms, p.r.Logs, p.r.Calls)
					}
				})
			}
			if local == "" {
				return withStore(cmd.Context(), g, &t, run)
			}
			if _, err := os.Stat(local); err == nil {
				return fmt.Errorf("--local %s: it exists: name a new folder", local)
			}
			st, err := project.NewStore(cmd.Context(), local, g.logger())
			if err != nil {
				return err
			}
			return errors.Join(run(cmd.Context(), st), st.Close(), os.RemoveAll(local))
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&local, "local", "", "make a store in this new folder, and remove it again")
	f.DurationVar(&o.For, "for", o.For, "how long each phase lasts")
	f.IntVar(&o.Producers, "producers", o.Producers, "that append at once")
	f.IntVar(&o.Batch, "batch", o.Batch, "logs of one append")
	f.IntVar(&o.Bytes, "bytes", o.Bytes, "of one log")
	f.IntVar(&o.Groups, "groups", o.Groups, "of one lease")
	f.IntVar(&o.GroupSize, "group-size", o.GroupSize, "logs of one group")
	f.BoolVar(&o.Keep, "keep", false, "leave its table and logs")
	return cmd
}
