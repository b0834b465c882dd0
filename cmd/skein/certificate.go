package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newClusterCertificate(g *globals) *cobra.Command {
	var o project.CertificateOptions
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "Get a certificate for a program of your own",
		Long: `certificate joins the cluster and leaves in a folder what a gRPC client of any
language needs (docs/api.md): ca.crt, node.crt and node.key. A program with role
worker appends and takes tickets, a learner leases and commits, a client does both
and what operators do.`,
		Example: "  skein cluster certificate --join 10.0.0.1:7400 --token-file token --role client --id loader --out loader-cert",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" || o.Join == "" || tokenFile == "" {
				return errors.New("say where: --join HOST:PORT, --token-file FILE and --out FOLDER")
			}
			var err error
			if o.Token, err = readToken(tokenFile); err != nil {
				return err
			}
			id, err := project.Certificate(cmd.Context(), o)
			if err != nil {
				return err
			}
			return g.result(map[string]any{"id": id, "role": o.Role, "folder": o.Dir, "server_name": project.ServerName,
				"ca": filepath.Join(o.Dir, "ca.crt"), "certificate": filepath.Join(o.Dir, "node.crt"), "key": filepath.Join(o.Dir, "node.key")}, func() {
				fmt.Printf("%s %s may call the cluster with the files in %s; servers are named %s\n", o.Role, id, o.Dir, project.ServerName)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Join, "join", "", "address of a replay node")
	f.StringVar(&tokenFile, "token-file", "", "file with the cluster's join token")
	f.StringVar(&o.Dir, "out", "", "folder for the files")
	f.StringVar(&o.Role, "role", "client", "client, worker or learner")
	f.StringVar(&o.ID, "id", "", "name of the program (default: made up)")
	return cmd
}
