package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newDoctor(g *globals) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Check what this machine can do and what stands in the way",
		Example: "  skein doctor\n  skein doctor --dir /var/lib/skein --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := project.Doctor(cmd.Context(), dir)
			bad := false
			for _, c := range checks {
				bad = bad || c.State == project.CheckFailed
			}
			err := g.result(map[string]any{"ok": !bad, "checks": checks}, func() {
				for _, c := range checks {
					fmt.Printf("%-4s  %-18s %s\n", c.State, c.Name, c.Detail)
					if c.Remedy != "" {
						fmt.Printf("      %-18s -> %s\n", "", c.Remedy)
					}
				}
			})
			if err == nil && bad {
				return errReported
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "folder whose disk a run would use")
	return cmd
}
