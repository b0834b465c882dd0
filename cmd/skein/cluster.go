package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
)

func newCluster(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Found a cluster's authority, add shards, move runs, replace nodes and the join token",
		Long: `A cluster is the replay nodes that decide together, and the workers and learners
that joined them. Nodes come in by the join token (skein node); this command is
for what an operator does beside that.`,
	}
	cmd.AddCommand(newClusterInit(g), newClusterCheck(g), newClusterShards(g), newClusterShard(g), newClusterPlace(g), newClusterReplicas(g), newClusterReplace(g), newClusterRemove(g), newClusterRotate(g), newClusterCertificate(g))
	return cmd
}

func newClusterInit(g *globals) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the keys and the join token of a cluster before any node runs",
		Long: `init writes ca.crt, ca.key and token into a folder. Give the folder to every
replay node (skein node --authority DIR, or the key authority of a cluster file,
or a Kubernetes secret) and the file token to everybody else: then the whole
fleet can be started at once, in any order. Whoever holds ca.key can admit
anybody: keep it as a secret.`,
		Example: `  skein cluster init --dir keys
  skein node --role replay --authority keys --dir /var/lib/skein --listen 10.0.0.1:7400`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			token, err := cluster.MakeAuthority(dir)
			if err != nil {
				return err
			}
			view := map[string]string{"dir": dir, "cluster": token.Cluster(), "token_file": filepath.Join(dir, "token")}
			return g.result(view, func() {
				fmt.Printf("authority of cluster %s in %s: ca.crt, ca.key (secret), token (secret)\n", token.Cluster(), dir)
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder for the keys, empty or new (required)")
	_ = cmd.MarkFlagRequired("dir")
	return cmd
}

func newClusterCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a cluster file and show what each node will be",
		Example: `  skein cluster check cluster.yaml`,
		Args:    oneArg("cluster file"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := project.LoadClusterFile(args[0])
			if err != nil {
				return err
			}
			return g.result(f, func() {
				for _, n := range f.Nodes {
					fmt.Printf("%-20s %-20v %s\n", n.ID, n.Roles, n.Host)
				}
			})
		},
	}
}

// admin connects as an operator.
func admin(cmd *cobra.Command, g *globals, t target) (*project.Store, error) {
	st, err := t.connect(cmd.Context(), g)
	if err != nil {
		return nil, err
	}
	if st.Admin == nil {
		return nil, errors.Join(errors.New("the nodes are not running: start them first"), st.Close())
	}
	return st, nil
}

func newClusterRemove(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Take a replay node out for good",
		Long: `remove takes a replay node out of the group: its vote, its copies and its id are
gone, the others go on. To replace a node, start the new one and use skein
cluster replace. A node of a further shard is named with --shard.`,
		Example: `  skein cluster remove replay-2 --join 10.0.0.1:7400 --token-file token`,
		Args:    oneArg("node id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			c, err := shardOf(cmd, st, t.shard)
			if err != nil {
				return err
			}
			if err := c.RemoveNode(cmd.Context(), args[0]); err != nil {
				return err
			}
			return g.result(map[string]string{"removed": args[0]}, func() { fmt.Printf("%s is out\n", args[0]) })
		},
	}
	t.flags(cmd)
	return cmd
}

func newClusterRotate(g *globals) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "rotate-token",
		Short: "Replace the join token; members stay in",
		Long: `rotate-token makes a new join token, which every running replay node takes over
within seconds and keeps in its file DIR/replay/token; the old one admits nobody
any more. Certificates are not touched: they are renewed by themselves after two
thirds of their 90 days. The new token is printed once: it is a secret. Every
further shard gets one of its own, in DIR/replay/token of its nodes.`,
		Example: `  skein cluster rotate-token --join 10.0.0.1:7400 --token-file token > token.new`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := admin(cmd, g, t)
			if err != nil {
				return err
			}
			defer st.Close()
			token, err := st.Admin.RotateToken(cmd.Context())
			if err != nil {
				return err
			}
			return g.result(map[string]string{"token": token.Reveal()}, func() { fmt.Println(token.Reveal()) })
		},
	}
	t.flags(cmd)
	return cmd
}
