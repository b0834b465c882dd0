package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

// target are the flags that say which run's store a command looks at.
type target struct {
	dir, join, tokenFile, run string
}

func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.dir, "dir", "", "folder of a run (running or not)")
	cmd.Flags().StringVar(&t.join, "join", "", "address of a replay node of a running cluster")
	cmd.Flags().StringVar(&t.tokenFile, "token-file", "", "file with the cluster's join token")
	cmd.Flags().StringVar(&t.run, "run", "", "run name (default: the only run there)")
	cmd.MarkFlagsMutuallyExclusive("dir", "join")
	cmd.MarkFlagsRequiredTogether("join", "token-file")
}

// open connects to the store and resolves the run's name.
func (t *target) open(ctx context.Context, g *globals) (*project.Store, string, error) {
	if t.dir == "" && t.join == "" {
		return nil, "", fmt.Errorf("say which run: --dir FOLDER, or --join HOST:PORT --token-file FILE")
	}
	token, err := readToken(t.tokenFile)
	if err != nil {
		return nil, "", err
	}
	st, err := project.OpenStore(ctx, project.StoreOptions{Dir: t.dir, Join: t.join, Token: token, Log: g.logger()})
	if err != nil {
		return nil, "", err
	}
	if t.run != "" {
		return st, t.run, nil
	}
	runs, err := st.Runs(ctx)
	if err == nil && len(runs) != 1 {
		err = fmt.Errorf("there are %d runs (%s): choose one with --run", len(runs), strings.Join(runs, ", "))
	}
	if err != nil {
		_ = st.Close()
		return nil, "", err
	}
	return st, runs[0], nil
}

func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
