package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newNode(g *globals) *cobra.Command {
	var opt project.NodeOptions
	var tokenFile, config, fleet, engine, engineKey string
	var sets []string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run one node of a cluster",
		Long: `node runs the named roles on this machine until it is stopped. The first replay
node makes the cluster and its join token (DIR/replay/token); every other node
joins with that token. SIGTERM drains: a worker finishes or returns its groups.

  replay    holds EventLogs, adapters and the run's state (run 1, 3 or 5 of them)
  worker    rolls out groups of every unfinished run of its base model, each under
            its newest policy, in proportion to share
  learner   trains complete groups and publishes policies; starts the run of --config
            (further learners compute part of its micro-batches, with the same result
            to the bit, and one of them takes over when it is gone)

A worker needs no accelerator of its own when --engine names a server that has
one: vLLM, another machine's skein serve, or llama.cpp's server (docs/engines.md).

A fleet whose machines are known beforehand is described once: a cluster file
lists the nodes, skein cluster init makes their keys, and --cluster FILE plays
the part of the machine it is started on, in any order
(deploy/cluster.yaml shows one).`,
		Example: `  skein node --role replay --dir /var/lib/skein --listen 10.0.0.1:7400
  skein node --role replay --dir /var/lib/skein --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --token-file token
  skein node --role worker --dir /var/lib/skein --join 10.0.0.1:7400 --token-file token
  skein node --role learner --dir /var/lib/skein --join 10.0.0.1:7400 --token-file token --config run.yaml
  skein node --role worker --dir /var/lib/skein --join 10.0.0.1:7400 --token-file token --tenant '*'
  skein node --role worker --dir /var/lib/skein --join 10.0.0.1:7400 --token-file token \
    --engine vllm=http://10.0.0.9:8000,capacity=64,price=0.5,adapters=/shared/adapters --engine-key-file key
  skein node --cluster cluster.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := readToken(tokenFile)
			if err != nil {
				return err
			}
			opt.Token = token
			if fleet != "" {
				n, o, err := fromClusterFile(fleet, opt.ID)
				if err != nil {
					return err
				}
				opt, config, sets, engine, engineKey = o, n.Config, n.Set, n.Engine, n.EngineKeyFile
			}
			if config != "" {
				cfg, notes, err := project.Load(config, sets)
				if err != nil {
					return err
				}
				printNotes(notes)
				opt.Config = &cfg
			}
			if opt.Dir == "" {
				return fmt.Errorf("--dir: \"\": name a folder for the node's data, keys and logs")
			}
			if opt.Engine, err = project.ReadEngine(engine, engineKey, opt.Dir); err != nil {
				return err
			}
			opt.Log, opt.Version = g.logger(), version()
			if !g.verbose {
				opt.Log = infoLogger()
			}
			opt.Ready = func(addr, tokenFile string) {
				fmt.Fprintf(os.Stderr, "skein node: serving on %s; others join with the token in %s\n", addr, tokenFile)
			}
			return project.RunNode(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&opt.Roles, "role", nil, "roles of this node: replay, worker, learner (required)")
	f.StringVar(&opt.Dir, "dir", "", "folder for the node's data, keys and logs (required)")
	f.StringVar(&opt.Listen, "listen", "", "address to serve on: a replay node's (default: that of the last start; at first a free port of 127.0.0.1), or a learner's for other learners, a worker's for other workers (default: a free port)")
	f.StringVar(&opt.Advertise, "advertise", "", "address that others reach a replay node at, HOST:PORT (default: the one it listens on; needs --listen)")
	f.DurationVar(&opt.Heartbeat, "heartbeat", 0, "replay: how long a silent leader is waited for (default 2s)")
	f.Uint64Var(&opt.SnapshotEvery, "snapshot-every", 0, "replay: raft entries between snapshots (default 4096)")
	f.Uint64Var(&opt.MinFreeBytes, "min-free-bytes", 0, "replay: free space below which appends are refused (default 512 MiB)")
	f.StringVar(&opt.ID, "id", "", "node id, unique in the cluster (default: kept in the folder)")
	f.StringSliceVar(&opt.Join, "join", nil, "addresses of replay nodes to join by")
	f.StringVar(&opt.Metrics, "metrics", "", "serve Prometheus metrics on HOST:PORT (port 0: any free one, written to DIR/metrics-addr)")
	f.StringVar(&fleet, "cluster", "", "cluster file: be the node of it that --id or this machine's name says")
	f.StringVar(&opt.Authority, "authority", "", "folder made by skein cluster init: on the first start a replay node takes its keys from it, others the token")
	f.StringVar(&opt.Founder, "founder", "", "with --authority: id of the replay node that makes the cluster when nobody answers at --join")
	f.StringVar(&opt.Shard, "shard", "", "replay: name of the shard that this node founds, with --authority, beside the cluster's first group (docs/sharding.md)")
	f.StringVar(&tokenFile, "token-file", "", "file with the cluster's join token")
	f.StringVar(&opt.Tenant, "tenant", "", "tenant that a worker or learner belongs to (default: the token's); '*' lets a worker serve the runs of all")
	f.StringVar(&config, "config", "", "configuration of the run that a learner starts")
	f.StringArrayVar(&sets, "set", nil, "override a key of the configuration: key.path=value (repeatable)")
	f.StringVar(&engine, "engine", "", "worker: generate by a server, KIND=URL[,key=value…], KIND one of vllm, skein, openai, llamacpp; keys model, capacity, price, adapters, adapters-there, timeout, attempts")
	f.StringVar(&engineKey, "engine-key-file", "", "file whose first line is the server's API key")
	for _, name := range []string{"engine", "engine-key-file", "role", "dir", "listen", "advertise", "join", "authority", "founder", "shard", "token-file", "tenant", "config", "set", "metrics"} {
		cmd.MarkFlagsMutuallyExclusive("cluster", name)
	}
	return cmd
}

// fromClusterFile is the part of this machine in a fleet.
func fromClusterFile(path, id string) (project.ClusterNode, project.NodeOptions, error) {
	f, err := project.LoadClusterFile(path)
	if err != nil {
		return project.ClusterNode{}, project.NodeOptions{}, err
	}
	hostname, err := os.Hostname()
	if err != nil && id == "" {
		return project.ClusterNode{}, project.NodeOptions{}, fmt.Errorf("this machine's name: %w: say who this is with --id", err)
	}
	n, err := f.Node(id, hostname)
	return n, f.Options(n), err
}
