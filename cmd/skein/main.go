// Command skein trains tool-using language-model agents with reinforcement
// learning, from one process to a cluster. This package is flags and wiring;
// the work is done by the rooms it joins.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	project.WatchParent(cancel)
	g := &globals{}
	if err := newRoot(g).ExecuteContext(ctx); err != nil {
		os.Exit(g.fail(err))
	}
}

// errReported ends a command whose outcome is already printed.
var errReported = errors.New("reported")

// fail prints a command's error, with --json also as the last line of stdout,
// and returns the exit status.
func (g *globals) fail(err error) int {
	status := project.ExitStatus(err)
	if errors.Is(err, errReported) {
		return status
	}
	text := plain(err)
	fmt.Fprintln(os.Stderr, "skein:", text)
	if g.json {
		_ = g.result(map[string]any{"error": text, "exit_status": status}, nil)
	}
	return status
}

// rooms are the prefixes with which packages mark their errors.
var rooms = regexp.MustCompile(`(: |\(last: )(?:project|cluster|replay|learner|rollout|model|xla|gobackend|hub|actors|eventlog|task|tool): `)

// plain is an error's text without the names of the rooms it came through: the
// first one stays.
func plain(err error) string {
	text := err.Error()
	for {
		next := rooms.ReplaceAllString(text, "$1")
		if next == text {
			return text
		}
		text = next
	}
}

// globals are the flags every command has.
type globals struct {
	json    bool
	verbose bool
}

func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "skein",
		Short: "Train tool-using language-model agents with reinforcement learning",
		Long: `Skein trains tool-using language-model agents with reinforcement learning,
from a laptop to a cluster, as one binary.

Start here:
  skein quickstart                 one process, nothing to install
  skein train --config run.yaml    your own run
  skein up --config run.yaml       the same run as a local cluster of processes`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.PersistentFlags().BoolVar(&g.json, "json", false, "progress on stderr, one JSON object as the last line of stdout")
	root.PersistentFlags().BoolVarP(&g.verbose, "verbose", "v", false, "log what every part does")
	root.AddCommand(
		newQuickstart(g), newTrain(g), newUp(g), newNode(g), newCluster(g), newServe(g), newStatus(g), newTop(g), newDebug(g), newRollback(g),
		newLog(g), newReplay(g), newTenant(g), newModel(g), newVerify(g), newDoctor(g), newDev(g),
	)
	return root
}

// logger writes to stderr; quiet unless --verbose.
func (g *globals) logger() *slog.Logger {
	level := slog.LevelWarn
	if g.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// result prints a command's outcome: v as one line of JSON with --json, else
// what text prints.
func (g *globals) result(v any, text func()) error {
	if !g.json {
		text()
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	fmt.Println(string(b))
	return nil
}

// infoLogger is the log of a long-running node: what happens, on stderr.
func infoLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
}
