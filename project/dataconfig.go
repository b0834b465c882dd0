package project

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// DataConfig names the rows that sft, dpo, kto, bco and reward train on.
type DataConfig struct {
	// Train are files or patterns, each with its weight in a mix; one path alone
	// may be written as text. Eval are files to evaluate on; or EvalSplit of the
	// training rows is held out, chosen by training.seed.
	Train     []data.Source `yaml:"train,omitempty"`
	Eval      []data.Source `yaml:"eval,omitempty"`
	EvalSplit float64       `yaml:"eval_split"`
	// Rollouts takes the rows from another run's rollouts instead.
	Rollouts RolloutsConfig `yaml:"rollouts"`
	// Format forces a reading of the columns, one of data.Formats(); "" detects
	// it. Columns renames them: the wanted name -> the file's.
	Format  string            `yaml:"format,omitempty"`
	Columns map[string]string `yaml:"columns,omitempty"`
	// BadRows is "fail" or "skip".
	BadRows string `yaml:"bad_rows"`
	// MaxLength bounds prompt and completion in tokens, at most (and with 0
	// exactly) by what the model serves; MaxPromptLength the prompt, 0 = no
	// bound. Overlong is "drop", "truncate" or "fail".
	MaxLength       int    `yaml:"max_length"`
	MaxPromptLength int    `yaml:"max_prompt_length"`
	Overlong        string `yaml:"overlong"`
	// ToolCallWeight weighs the tokens of turns that call tools in sft.
	ToolCallWeight float64 `yaml:"tool_call_weight"`
	// MaskHistory trains the last assistant turn of a conversation alone.
	MaskHistory bool `yaml:"mask_history"`
	// StepSeparator stands between the steps of stepwise rows.
	StepSeparator string `yaml:"step_separator"`

	data.Order `yaml:",inline"`
}

func defaultData() DataConfig {
	return DataConfig{Rollouts: defaultRollouts(), BadRows: data.BadFail, Overlong: data.LongDrop, ToolCallWeight: 2, StepSeparator: "\n", Order: data.DefaultOrder()}
}

// wants says what an algorithm trains on.
func wants(algorithm string) data.Want {
	switch algorithm {
	case learner.DPO, learner.Reward:
		return data.WantPairs
	case learner.KTO, learner.BCO:
		return data.WantVerdicts
	}
	return data.WantDemonstrations
}

// options for package data; limit is the longest sequence the model serves.
func (c Config) dataOptions(limit int) data.Options {
	d := c.Data
	length := d.MaxLength
	if limit > 0 && (length == 0 || length > limit) {
		length = limit
	}
	enc := data.Encoding{CallWeight: d.ToolCallWeight, LastTurnOnly: d.MaskHistory, StepSeparator: d.StepSeparator}
	return data.Options{
		Want: wants(c.Training.Algorithm), Format: d.Format, Columns: d.Columns, BadRows: d.BadRows,
		MaxLength: length, MaxPrompt: d.MaxPromptLength, Overlong: d.Overlong, Encoding: enc, Order: d.Order,
	}
}

// validateData checks the section for an algorithm that reads it, or says that
// none does.
func (c Config) validateData(bad func(field string, value any, remedy string)) []error {
	d := c.Data
	if !c.Training.Offline() {
		if len(d.Train)+len(d.Eval) > 0 || d.Rollouts.Dir != "" {
			bad("data", d.Train, fmt.Sprintf("training.algorithm %s trains on rollouts of task %s, not on files: leave data out, or use one of %v", c.Training.Algorithm, c.Task.Name, learner.OfflineAlgorithms()))
		}
		return nil
	}
	if len(d.Eval) > 0 && d.EvalSplit > 0 {
		bad("data.eval_split", d.EvalSplit, "data.eval names files already: use one of the two")
	}
	if !(d.EvalSplit >= 0 && d.EvalSplit < 1) {
		bad("data.eval_split", d.EvalSplit, "use a share such as 0.1, or 0 for none")
	}
	if c.Warmup.Examples > 0 {
		bad("warmup.examples", c.Warmup.Examples, "there is no warm-up before training on files: train sft first and give its adapter as start_adapter")
	}
	sources := d.Train
	if d.Rollouts.Dir != "" {
		if len(d.Train) > 0 {
			bad("data.rollouts.dir", d.Rollouts.Dir, "data.train names files: use one of the two")
		}
		sources = []data.Source{{Path: d.Rollouts.Dir}} // only the rest of the section is checked
	}
	errs := d.Rollouts.validate(bad)
	if err := c.dataOptions(0).Validate(sources); err != nil {
		errs = append(errs, within("data", trimRoom(err))...)
	}
	return errs
}

// trimRoom unwraps "room: err" to err.
func trimRoom(err error) error {
	if u, ok := err.(interface{ Unwrap() error }); ok && u.Unwrap() != nil {
		return u.Unwrap()
	}
	return err
}

// skippedRows logs rows that are left out: the first of them as warnings, the
// rest, and those that an error lists anyway, for --verbose.
func skippedRows(policy string, log *slog.Logger) func(string, error) {
	n := 0
	return func(where string, why error) {
		level := slog.LevelDebug
		if n++; n <= 10 && policy == data.BadSkip {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "row left out", "where", where, "why", why)
	}
}

// loadData reads the sets a configuration names; eval is nil without one.
func loadData(ctx context.Context, c Config, m *model.Model, log *slog.Logger) (train, eval *data.Set, rep data.Report, err error) {
	chat, err := newDataChat(m, c.Chat)
	if err != nil {
		return nil, nil, rep, err
	}
	opt := c.dataOptions(m.Config.ContextLimit())
	opt.Skipped = skippedRows(c.Data.BadRows, log)
	if c.Data.Rollouts.Dir != "" {
		train, rep, err = harvest(ctx, c, m, log)
	} else {
		train, rep, err = data.Load(ctx, c.Data.Train, chat, opt)
	}
	if err != nil {
		return nil, nil, rep, err
	}
	switch {
	case len(c.Data.Eval) > 0:
		opt.Order = data.Order{Mix: data.MixConcat}
		eval, _, err = data.Load(ctx, c.Data.Eval, chat, opt)
	case c.Data.EvalSplit > 0:
		train, eval, err = train.Split(c.Data.EvalSplit, c.Training.Seed)
	}
	return train, eval, rep, err
}
