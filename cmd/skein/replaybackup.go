package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay/backup"
)

const targetHelp = `A target is a folder, or s3://BUCKET/PREFIX?endpoint=HOST:PORT (with region=NAME and
insecure=true for plain HTTP) with the keys in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY.`

func newReplayBackup(g *globals) *cobra.Command {
	var t target
	var to string
	var o backup.Options
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back up the whole store while it is in use",
		Long: `backup copies the state as of one raft index with every log and blob it names. What
an earlier backup has copied to the same target is not copied again.

` + targetHelp,
		Example: `  skein replay backup --dir runs/demo --to /mnt/backups/demo
  skein replay backup --join 10.0.0.1:7400 --token-file token --to 's3://backups/demo?endpoint=minio:9000' --name before-upgrade`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := backup.OpenTarget(to)
			if err != nil {
				return err
			}
			return withStore(cmd.Context(), g, &t, func(ctx context.Context, st *project.Store) error {
				o.Progress = func(n, all int) { progress("%d of %d logs and blobs copied", n, all) }
				m, err := backup.Create(ctx, st, target, o)
				endProgress()
				if err != nil {
					return err
				}
				return g.result(m, func() {
					fmt.Printf("backup %s of %d logs (%d bytes) and %d blobs at raft index %d; copied %d logs and %d blobs, %d bytes as stored\n",
						m.Name, m.Logs, m.Bytes, len(m.Blobs), m.Index, m.NewLogs, m.NewBlobs, m.NewStored)
				})
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&to, "to", "", "target")
	cmd.Flags().StringVar(&o.Name, "name", "", "of the backup (default: the time)")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

func newReplayBackups(g *globals) *cobra.Command {
	var from, check string
	cmd := &cobra.Command{
		Use:     "backups",
		Short:   "List the backups in a target, or check one",
		Long:    targetHelp,
		Example: "  skein replay backups --from /mnt/backups/demo --check 20260102T150405Z",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			target, err := backup.OpenTarget(from)
			if err != nil {
				return err
			}
			if check != "" {
				m, err := backup.Get(ctx, target, check)
				if err == nil {
					err = backup.Check(ctx, target, m)
				}
				if err != nil {
					return err
				}
				return g.result(map[string]any{"name": m.Name, "ok": true, "logs": m.Logs, "blobs": len(m.Blobs)}, func() {
					fmt.Printf("backup %s is whole: %d logs, %d blobs\n", m.Name, m.Logs, len(m.Blobs))
				})
			}
			all, err := backup.List(ctx, target)
			if err != nil {
				return err
			}
			return g.result(map[string]any{"backups": all}, func() {
				for _, m := range all {
					fmt.Printf("%-28s %s  %9d logs %12d bytes  raft index %d\n", m.Name, m.Created.Format(time.DateTime), m.Logs, m.Bytes, m.Index)
				}
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "target")
	cmd.Flags().StringVar(&check, "check", "", "read the backup of this name and verify all of it")
	_ = cmd.MarkFlagRequired("from")
	return cmd
}

func newReplayRestore(g *globals) *cobra.Command {
	var from string
	var o project.RestoreOptions
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Make a new cluster, or a run folder, of a backup",
		Long: `restore writes a backup to a new folder, every object verified by its digest, as a
replay node that is a cluster of its own: start it with skein node --role replay
--dir FOLDER, and join others as always. With --as-run it becomes the folder of a
single process, for skein train to go on with.

` + targetHelp,
		Example: `  skein replay restore --from /mnt/backups/demo --to /var/lib/skein-new
  skein replay restore --from /mnt/backups/demo --name before-upgrade --to runs/demo --as-run demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			target, err := backup.OpenTarget(from)
			if err != nil {
				return err
			}
			if o.Dir == "" {
				return errors.New("--to: \"\": name a new folder")
			}
			m, err := backup.Get(ctx, target, o.Name)
			if err != nil {
				return err
			}
			c := backup.Open(ctx, target, m)
			c.Progress = func(n, all int) { progress("%d of %d logs and blobs restored", n, all) }
			o.Log = g.logger()
			rep, err := project.Restore(ctx, o, c)
			endProgress()
			if err != nil {
				return err
			}
			return g.result(map[string]any{"name": m.Name, "to": o.Dir, "node": rep.Node, "raft_index": rep.Index, "logs": rep.Logs, "blobs": rep.Blobs}, func() {
				fmt.Printf("backup %s restored to %s: %d logs and %d blobs at raft index %d\n", m.Name, o.Dir, rep.Logs, rep.Blobs, rep.Index)
				if o.Run == "" {
					fmt.Printf("start it: skein node --role replay --dir %s\n", o.Dir)
				}
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "target")
	f.StringVar(&o.Name, "name", "", "of the backup (default: the newest)")
	f.StringVar(&o.Dir, "to", "", "new folder")
	f.StringVar(&o.ID, "id", "", "of the node (default: made up)")
	f.StringVar(&o.Run, "as-run", "", "make the folder of this run in a single process")
	_ = cmd.MarkFlagRequired("from")
	return cmd
}

func newReplayPrune(g *globals) *cobra.Command {
	var from string
	var o backup.PruneOptions
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Take old backups away, and what only they need",
		Long: `prune deletes backups, then every object of the target that no other backup needs and
that is older than --grace (a backup may be on its way). With --purge, bytes of
logs that none of the others has go too, where they share a pack.

` + targetHelp,
		Example: "  skein replay prune --from /mnt/backups/demo --keep 14",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := backup.OpenTarget(from)
			if err != nil {
				return err
			}
			rep, err := backup.Prune(cmd.Context(), target, o)
			if err != nil {
				return err
			}
			return g.result(rep, func() {
				fmt.Printf("%d backups and %d objects (%d bytes) removed, %d packs rewritten\n", len(rep.Backups), rep.Objects, rep.Bytes, rep.Packs)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "target")
	f.IntVar(&o.Keep, "keep", 0, "how many of the newest stay")
	f.StringSliceVar(&o.Names, "name", nil, "backups to take away")
	f.BoolVar(&o.Purge, "purge", false, "rewrite packs that hold logs of no backup")
	f.DurationVar(&o.Grace, "grace", 24*time.Hour, "spare what is younger")
	_ = cmd.MarkFlagRequired("from")
	return cmd
}
