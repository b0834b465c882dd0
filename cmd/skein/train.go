package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/project"
)

// trainFlags are those of skein train and of its algorithms.
type trainFlags struct {
	configs, sets []string
	dir, metrics  string
	dry           bool
	join          []string // rows only
	token, listen string
}

func (f *trainFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.configs, "config", nil, "configuration file (YAML onto the defaults); several train at once over one base model")
	cmd.Flags().StringVar(&f.dir, "dir", "", "folder of the run (default runs/RUN); with several --config the folder of their folders (default runs)")
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, "override a key of the configuration: key.path=value (repeatable)")
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics on HOST:PORT (port 0: any free one, written to DIR/metrics-addr)")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "print the resolved configuration, the memory plan and what a step costs, and stop")
}

func newTrain(g *globals) *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "train [ALGORITHM]",
		Short: "Run a training configuration in one process",
		Long: `train runs a configuration in this process: for algorithms on rollouts it plays
every role; algorithms on rows read files of data.train. The algorithm is the
configuration's, or the one named (see skein train ALGORITHM --help). Started
again with the same --dir it continues where it stopped, with the same next
batch. For separate processes see skein up; for several machines see skein node.

With several --config the runs train at once, each in DIR/RUN: runs on one base
model share its weights, the batch of rollouts and passes of training in
proportion to their share, and each gets to the bit what it gets alone. One that
fails leaves the others alone; a file DIR/RUN/stop stops one of them.`,
		Example: `  skein train --config recipes/store-grpo.yaml
  skein train --config recipes/store-grpo.yaml --set training.learning_rate=2e-4 --set training.loss_type=dapo --dir runs/mine
  skein train dpo --config recipes/store-dpo.yaml
  skein train --config recipes/store-grpo.yaml --dry-run
  skein train --config a.yaml --config b.yaml --dir runs`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown algorithm %q; use one of %s", args[0], strings.Join(learner.Algorithms(), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, g, "") },
	}
	f.flags(cmd)
	for _, algorithm := range learner.Algorithms() {
		cmd.AddCommand(newAlgorithm(g, algorithm))
	}
	return cmd
}

// about says what an algorithm does and which columns it reads.
var about = map[string][2]string{
	"grpo":        {"Group-relative policy optimisation on rollouts", ""},
	"ppo":         {"Proximal policy optimisation with a critic, on rollouts", ""},
	"rloo":        {"REINFORCE leave-one-out on rollouts", ""},
	"reinforce++": {"REINFORCE++ on rollouts: advantages token by token over the whole batch", ""},
	"online_dpo":  {"Direct preference optimisation on rollouts: a group's better ones against its worse ones, by their rewards", ""},
	"online_bco":  {"Binary classifier optimisation on rollouts: desirable from a reward on", ""},
	"sft":         {"Supervised fine-tuning on demonstrations", "text; or prompt, completion; or messages (and tools); or prompt, completions, labels"},
	"dpo":         {"Direct preference optimisation on pairs", "prompt, chosen, rejected; or chosen, rejected with a common beginning"},
	"kto":         {"Kahneman-Tversky optimisation on verdicts", "prompt, completion, label; or pairs; or prompt, completions, labels"},
	"bco":         {"Binary classifier optimisation on verdicts", "prompt, completion, label; or pairs; or prompt, completions, labels"},
	"reward":      {"Bradley-Terry reward model on pairs", "prompt, chosen, rejected; or chosen, rejected with a common beginning"},
}

func newAlgorithm(g *globals, algorithm string) *cobra.Command {
	var f trainFlags
	offline := learner.DefaultConfigOf(algorithm).Offline()
	text := about[algorithm]
	cmd := &cobra.Command{Use: algorithm, Short: text[0], Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, g, algorithm) }}
	if !offline {
		cmd.Long = text[0] + ". The task, its tools and rewards are the configuration's."
		cmd.Example = fmt.Sprintf("  skein train %[1]s --config run.yaml --dir runs/mine\n  skein train %[1]s --config run.yaml --set training.learning_rate=1e-5 --dry-run", algorithm)
		if recipe := "store-" + algorithm; slices.Contains(project.Recipes(), recipe) {
			cmd.Example = fmt.Sprintf("  skein train %s --config recipes/%s.yaml\n", algorithm, recipe) + cmd.Example
		}
	} else {
		cmd.Long = fmt.Sprintf(`%s, from files (.jsonl, .ndjson, also .gz or .zst, or
.parquet). Columns: %s.
Text may be a list of messages everywhere; columns weight (of the row) and
margin are read where they stand. The run's folder gets checkpoints,
metrics.jsonl, summary.json and the final adapter in PEFT's format.`, text[0], text[1])
		cmd.Example = fmt.Sprintf(`  skein train %[1]s --config recipes/store-%[1]s.yaml
  skein train %[1]s --data rows.jsonl --set training.learning_rate=1e-4 --dir runs/mine
  skein train %[1]s --data 'data/*.parquet' --set data.columns='{prompt: question}' --set data.eval_split=0.1 --dry-run
  skein train %[1]s --data rows.jsonl --set start_adapter=runs/sft/adapter
  skein train %[1]s --config run.yaml --join 10.0.0.1:7400 --token-file token   # with skein node --role learner --config run.yaml elsewhere`, algorithm)
		var paths []string
		cmd.Flags().StringSliceVar(&f.join, "join", nil, "addresses of a cluster's replay nodes: its learners started with the same --config help")
		cmd.Flags().StringVar(&f.token, "token-file", "", "with --join: file with the cluster's join token")
		cmd.Flags().StringVar(&f.listen, "listen", "", "with --join: address for other learners (default: a free port)")
		cmd.Flags().StringArrayVar(&paths, "data", nil, "file or pattern to train on, instead of the configuration's data.train (repeatable)")
		cmd.PreRunE = func(*cobra.Command, []string) error {
			if len(paths) == 0 {
				return nil
			}
			list, err := json.Marshal(paths)
			f.sets = append([]string{"data.train=" + string(list)}, f.sets...)
			return err
		}
	}
	f.flags(cmd)
	return cmd
}

// run loads the configuration and trains, or prints what that would take.
func (f *trainFlags) run(cmd *cobra.Command, g *globals, algorithm string) error {
	sets := f.sets
	if algorithm != "" {
		sets = append([]string{"training.algorithm=" + algorithm}, sets...)
	}
	if len(f.configs) > 1 {
		return f.runMany(cmd.Context(), g, sets)
	}
	config := ""
	if len(f.configs) == 1 {
		config = f.configs[0]
	}
	cfg, notes, err := project.Load(config, sets)
	if err != nil {
		return err
	}
	printNotes(notes)
	if f.dry {
		plan, err := project.MakePlan(cmd.Context(), cfg, g.logger())
		if err != nil {
			return err
		}
		return printPlan(g, cfg, plan)
	}
	if config == "" && !cfg.Training.Offline() {
		fmt.Fprintf(os.Stderr, "note: no --config: training %s on task %s with the defaults\n", cfg.Model, cfg.Task.Name)
	}
	dir := f.dir
	if dir == "" {
		dir = filepath.Join("runs", cfg.Run)
	}
	if cfg.Training.Offline() {
		opt := project.LocalOptions{Dir: dir, Metrics: f.metrics}
		if len(f.join) > 0 {
			token, err := readToken(f.token)
			if err != nil {
				return err
			}
			opt.Join = &project.NodeOptions{Join: f.join, Token: token, Listen: f.listen, Version: version()}
		} else if f.token != "" || f.listen != "" {
			return fmt.Errorf("--token-file, --listen: they are of --join, which is not given; leave them out or name a replay node")
		}
		return runRows(cmd.Context(), g, cfg, opt)
	}
	return runLocal(cmd.Context(), g, cfg, project.LocalOptions{Dir: dir, Metrics: f.metrics})
}

// printPlan prints a configuration with its plan: YAML with the plan in
// comments, or one line of JSON with the key "plan" beside the configuration's.
func printPlan(g *globals, cfg project.Config, plan project.Plan) error {
	text, err := cfg.YAML()
	if err != nil {
		return err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	tree["plan"] = plan
	return g.result(tree, func() {
		fmt.Print(string(text))
		for line := range strings.Lines(plan.String()) {
			fmt.Print("# " + line)
		}
	})
}

// runRows trains on files and prints the outcome.
func runRows(ctx context.Context, g *globals, cfg project.Config, opt project.LocalOptions) error {
	opt.Log, opt.Progress = g.logger(), os.Stderr
	sum, err := project.TrainRows(ctx, cfg, opt)
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "stopped after step %d; the same command with --dir %s goes on from there\n", sum.Steps, opt.Dir)
		if g.json {
			err = errors.Join(err, g.result(sum, nil))
		}
		return errors.Join(errReported, err)
	}
	if err != nil {
		return err
	}
	return g.result(sum, func() {
		fmt.Print("\n", sum.Table())
		fmt.Printf("  adapter: %s\n", sum.Adapter)
	})
}

// runLocal runs a configuration in this process and prints its outcome.
func runLocal(ctx context.Context, g *globals, cfg project.Config, opt project.LocalOptions) error {
	opt.Log, opt.Progress = g.logger(), os.Stderr
	sum, err := project.RunLocal(ctx, cfg, opt)
	return finish(g, sum, opt.Dir, err)
}

// finish prints a run's outcome; an interrupted run says how to go on.
func finish(g *globals, sum project.Summary, dir string, err error) error {
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "stopped after step %d; the same command with --dir %s goes on from there\n", sum.Steps, dir)
		if g.json {
			err = errors.Join(err, g.result(sum, nil))
		}
		return errors.Join(errReported, err)
	}
	if err != nil {
		return err
	}
	return g.result(sum, func() {
		fmt.Print("\n", sum.Table())
		fmt.Printf("  report: %s\n", filepath.Join(dir, "report.html"))
	})
}
