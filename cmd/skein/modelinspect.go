package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/rollout"
)

func newModelInspect(g *globals) *cobra.Command {
	var length, slots, sequences int
	var tensors bool
	cmd := &cobra.Command{
		Use:   "inspect PATH",
		Short: "Show a model's architecture, tensors, types, chat template and the memory it needs",
		Long: `inspect reads a model's headers, not its weights, and says what Skein would make
of it: the facts of its family, how the Go backend would store each kind of
matrix, the format of tool calls, and where its chat template rewrites earlier
turns, so that a rollout starts a new branch. PATH is a .gguf file, a folder in
Hugging Face layout, or a reference that was pulled.`,
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
			} else if err := rep.describe(slots, sequences, length); err != nil {
				return err
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
	Problem      string              `json:"problem,omitempty"`
	ContextLimit int                 `json:"context_limit,omitempty"` // tokens of a sequence, as the model is configured
	Rollout      int64               `json:"rollout_bytes"`
	Training     int64               `json:"training_bytes"`
	Storage      []gobackend.Planned `json:"go_storage,omitempty"` // by the pure-Go backend
	CallFormat   string              `json:"call_format,omitempty"`
	// TemplateForks: some continuation of raw turns makes a rollout start a new
	// branch (Chat.Prefix has them). CallProblem is why a rollout that calls tools
	// in CallFormat cannot go on without one; "" when it can.
	TemplateForks bool   `json:"template_forks"`
	CallProblem   string `json:"call_problem,omitempty"`
}

func (r *modelReport) describe(slots, sequences, length int) error {
	c := r.Config
	r.ContextLimit = c.ContextLimit()
	r.Rollout = c.RolloutMemory(slots, length).Total()
	lora := project.DefaultConfig().LoRA
	lora.Targets = []string{model.AllLinear} // whatever the family has
	m, err := c.TrainingMemory(lora.Resolve(c), sequences, length)
	if err != nil {
		return err
	}
	r.Training = m.Total()
	r.Storage = gobackend.Plan(r.Tensors, c.TieWordEmbeddings)
	if r.Chat != nil {
		r.TemplateForks = !r.Chat.Prefix.Extends()
		r.CallFormat = rollout.CallFormatFor(r.Chat.Template).Name
		if r.Chat.Tokenizer == nil {
			return nil
		}
		chat, err := rollout.NewModelChat(&model.Model{Name: r.Path, Config: c, Tokenizer: r.Chat.Tokenizer, Template: r.Chat.Template, StopIDs: r.StopIDs})
		if err == nil {
			err = rollout.CheckCalls(chat)
		}
		if err != nil {
			r.CallProblem = err.Error()
		}
	}
	return nil
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
	for _, f := range familyFacts(c) {
		fmt.Println("  " + f)
	}
	for _, t := range slices.Sorted(maps.Keys(r.ByType)) {
		fmt.Printf("  %-6s %12d elements\n", t, r.ByType[t])
	}
	fmt.Printf("  tokenizer of %d tokens, chat template %v, with tools %v\n", r.VocabSize, r.Template, r.Tools)
	if r.Problem != "" {
		fmt.Printf("  Skein cannot run it: %s\n", r.Problem)
	} else {
		printChat(r)
		for _, s := range r.Storage {
			var forms []string
			for _, f := range slices.Sorted(maps.Keys(s.Bytes)) {
				forms = append(forms, fmt.Sprintf("%s %.1f MiB", f, float64(s.Bytes[f])/mib))
			}
			fmt.Printf("  %-16s %s in the file, %s with backend go\n", s.Group, strings.Join(s.Stored, "+"), strings.Join(forms, ", "))
		}
		fmt.Printf("  memory in f32: %.0f MiB to roll out %d x %d tokens, %.0f MiB to train %d x %d tokens (LoRA %d)\n",
			float64(r.Rollout)/mib, slots, length, float64(r.Training)/mib, sequences, length, project.DefaultConfig().LoRA.Rank)
	}
	if tensors {
		for _, t := range r.Tensors {
			fmt.Printf("  %-56s %-6s %v\n", t.Name, t.DType, t.Shape)
		}
	}
}

// printChat says how the template will be used and one example of each kind of
// rewriting.
func printChat(r modelReport) {
	if r.Chat == nil {
		return
	}
	chat := r.Chat
	fmt.Printf("  tool calls are read as %s; a turn ends with %q", r.CallFormat, chat.TurnEnd)
	if chat.TurnEndProblem != "" {
		fmt.Printf(" (%s)", chat.TurnEndProblem)
	}
	if len(chat.Variables) > 0 {
		fmt.Printf("; chat.template_vars: %s", strings.Join(chat.Variables, ", "))
	}
	fmt.Println()
	if r.CallProblem != "" {
		fmt.Println("  calls of tools: " + r.CallProblem)
	} else {
		fmt.Println("  results of tools follow the emitted calls without a new branch")
	}
	if r.TemplateForks {
		fmt.Println("  the chat template rewrites earlier turns; a rollout then starts a new branch:")
	} else {
		fmt.Printf("  the chat template only appends (%d continuations of raw turns tried)\n", chat.Prefix.Checked)
	}
	seen := map[model.BreakKind]bool{}
	for _, b := range chat.Prefix.Breaks {
		if !seen[b.Kind] {
			fmt.Println("    " + b.String())
		}
		seen[b.Kind] = true
	}
	for _, why := range chat.Prefix.Refused {
		fmt.Println("    refused: " + why)
	}
}
