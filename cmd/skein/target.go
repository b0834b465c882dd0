package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

// target are the flags that say which run's store a command looks at.
type target struct {
	dir, join, tokenFile, run, shard string
}

func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.dir, "dir", "", "folder of a run (running or not)")
	cmd.Flags().StringVar(&t.join, "join", "", "address of a replay node of a running cluster")
	cmd.Flags().StringVar(&t.tokenFile, "token-file", "", "file with the cluster's join token")
	cmd.Flags().StringVar(&t.run, "run", "", "run name (default: the only run there)")
	cmd.Flags().StringVar(&t.shard, "shard", "", "look at one shard of a running cluster only (default: all)")
	cmd.MarkFlagsMutuallyExclusive("dir", "join")
	cmd.MarkFlagsRequiredTogether("join", "token-file")
}

// open connects to the store and resolves the run's name.
func (t *target) open(ctx context.Context, g *globals) (*project.Store, string, error) {
	st, err := t.connect(ctx, g)
	if err != nil {
		return nil, "", err
	}
	run, err := t.choose(ctx, st)
	if err != nil {
		_ = st.Close()
		return nil, "", err
	}
	return st, run, nil
}

func (t *target) connect(ctx context.Context, g *globals) (*project.Store, error) {
	if t.dir == "" && t.join == "" {
		return nil, fmt.Errorf("say which run: --dir FOLDER, or --join HOST:PORT --token-file FILE")
	}
	token, err := readToken(t.tokenFile)
	if err != nil {
		return nil, err
	}
	return project.OpenStore(ctx, project.StoreOptions{Dir: t.dir, Join: t.join, Token: token, Shard: t.shard, Log: g.logger()})
}

// choose is the run that was asked for, or the only one; it exists.
func (t *target) choose(ctx context.Context, st *project.Store) (string, error) {
	if t.run == "" {
		return soleRun(ctx, st)
	}
	runs, err := st.Runs(ctx)
	if err == nil && !slices.Contains(runs, t.run) {
		err = fmt.Errorf("--run %q: there is no such run; there are: %s", t.run, strings.Join(runs, ", "))
	}
	return t.run, err
}

// tables of a run.
var tables = []string{"train", "eval", "demonstrations"}

func checkTable(name string) error {
	if slices.Contains(tables, name) {
		return nil
	}
	return fmt.Errorf("--table %q: use one of %s", name, strings.Join(tables, ", "))
}

// oneArg is the check of a command that takes exactly one argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one %s, not %d arguments; see %s --help", cmd.CommandPath(), what, len(args), cmd.CommandPath())
		}
		return nil
	}
}

// errNoRun says that nothing was trained yet.
var errNoRun = errors.New("there is no run yet: start one with skein train, skein up, or a learner's --config")

// soleRun is the only run of a store, next to evaluations of its base model.
func soleRun(ctx context.Context, st *project.Store) (string, error) {
	runs, err := st.Runs(ctx)
	if err != nil {
		return "", err
	}
	var own []string
	for _, r := range runs {
		if !slices.ContainsFunc(runs, func(of string) bool { return r == project.BaseRun(of) }) {
			own = append(own, r)
		}
	}
	switch len(own) {
	case 0:
		return "", errNoRun
	case 1:
		return own[0], nil
	}
	return "", fmt.Errorf("there are %d runs (%s): choose one with --run", len(own), strings.Join(own, ", "))
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
