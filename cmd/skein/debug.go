package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newDebug(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "Put together what a bug report needs"}
	cmd.AddCommand(newDebugBundle(g))
	return cmd
}

func newDebugBundle(g *globals) *cobra.Command {
	var t target
	var out, note string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write a zip with versions, status, configuration, logs and metrics, secrets removed",
		Long: `bundle gathers what is needed to file a bug: version and build, what the machine
can do, runs and nodes, configurations, the newest steps, failed rollouts with
their causes, the ends of the logs and the processes' metrics. No prompts, no
completions, no weights, no keys. What looks like a secret is replaced; read the
zip before you send it. A store that cannot be reached is noted in the bundle.`,
		Example: `  skein debug bundle --dir runs/demo --out demo.zip --note "hangs after step 12"
  skein debug bundle --join 10.0.0.1:7400 --token-file token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			opt := project.BundleOptions{Dir: t.dir, Note: note, Version: version()}
			st, cerr := t.connect(cmd.Context(), g)
			if cerr != nil && t.dir == "" {
				return cerr
			}
			if opt.Unreachable = cerr; cerr == nil {
				defer st.Close()
				opt.Store = st
			}
			if out == "" {
				out = "skein-debug-" + time.Now().UTC().Format("20060102-150405") + ".zip"
			}
			f, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			problems, err := project.WriteBundle(cmd.Context(), f, opt)
			if err != nil {
				return fmt.Errorf("writing %s: %w", out, err)
			}
			return g.result(map[string]any{"file": out, "problems": problems}, func() {
				fmt.Println(out)
				for _, p := range problems {
					fmt.Fprintln(os.Stderr, "not in it:", p)
				}
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "file to write (default: skein-debug-TIME.zip here)")
	cmd.Flags().StringVar(&note, "note", "", "what went wrong, in your words")
	return cmd
}
