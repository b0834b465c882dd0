package project

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/skein-rl/skein/cluster"
)

// ServerName is the DNS name in every replay node's certificate.
const ServerName = cluster.RoleReplay + ".skein"

// CertificateOptions say for whom a certificate is.
type CertificateOptions struct {
	Join, Token string
	ID, Role    string // ID "" = made up
	Dir         string // gets ca.crt, node.crt and node.key
}

// Certificate joins a cluster for a program that is none of ours and returns its
// id. A folder that has the certificate already stays as it is.
func Certificate(ctx context.Context, o CertificateOptions) (string, error) {
	if !slices.Contains([]string{cluster.RoleClient, cluster.RoleWorker, cluster.RoleLearner}, o.Role) {
		return "", fmt.Errorf("project: --role %q: use client, worker or learner", o.Role)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return "", fmt.Errorf("project: certificate: %w", err)
	}
	id, err := nodeID(o.Dir, o.ID, o.Role)
	if err != nil {
		return "", err
	}
	tok, err := cluster.ParseToken(o.Token)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = cluster.Join(ctx, cluster.JoinConfig{Addrs: []string{o.Join}, Token: tok, ID: id, Role: o.Role, Dir: o.Dir})
	return id, err
}
