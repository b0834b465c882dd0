package project

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// Plan is what a training would take, found out without training.
type Plan struct {
	Algorithm string `json:"algorithm"`
	Train     string `json:"train"` // lora or full
	Steps     uint64 `json:"steps"`
	// StepTokens are computed in the largest step, MicroTokens at once; prompts
	// that are shared count once. For rollouts they are upper bounds.
	StepTokens  int `json:"step_tokens"`
	MicroTokens int `json:"micro_tokens"`
	// Params are the base's, Trained the adapter's, or of the base where all are.
	Params  int64 `json:"params"`
	Trained int   `json:"trained_params"`
	// Memory in bytes on the training device; Host of optimizer, checkpoints in
	// flight and rows.
	Memory model.Memory `json:"memory"`
	Host   int64        `json:"host"`
	// FLOPs of the largest step: 2 a parameter and token forward, 2 again to
	// recompute, 2 to differentiate (frozen weights need no gradient), 2 for the
	// reference. Attention's own are left out.
	FLOPs float64 `json:"flops"`
	// Checkpoint is the size of one in bytes.
	Checkpoint int64        `json:"checkpoint"`
	Data       *data.Counts `json:"data,omitempty"`
	Report     *data.Report `json:"data_report,omitempty"`
	EvalRows   int          `json:"eval_rows,omitempty"`
}

// MakePlan opens the model and, where there are any, the rows.
func MakePlan(ctx context.Context, c Config, log *slog.Logger) (Plan, error) {
	p := Plan{Algorithm: c.Training.Algorithm, Train: c.Train}
	var m *model.Model
	longest := c.Rollout.MaxLen
	rows := int64(0)
	if c.Training.Offline() {
		r, err := openRows(ctx, newBases(), c, log)
		if err != nil {
			return p, err
		}
		defer r.Close()
		m = r.model
		if p.Steps, p.StepTokens, p.MicroTokens, err = learner.PlanOffline(c.Training, r.train); err != nil {
			return p, err
		}
		counts := r.train.Counts()
		p.Data, p.Report, longest = &counts, &r.report, counts.Longest
		rows = 8 * int64(counts.Tokens)
		if r.eval != nil {
			p.EvalRows = r.eval.Len()
		}
	} else {
		var err error
		if m, err = OpenModel(c.Model); err != nil {
			return p, err
		}
		defer m.Close()
		p.Steps = uint64(c.Training.MaxSteps)
		p.StepTokens = c.Training.GroupsPerStep * c.Training.NumGenerations * c.Rollout.MaxLen
		p.MicroTokens = min(p.StepTokens, max(c.Training.TokenBudget, c.Rollout.MaxLen))
	}
	if err := c.checkFull(m); err != nil {
		return p, err
	}
	lora := c.LoRA.Resolve(m.Config)
	layout, err := model.TrainerConfig{LoRA: lora, Full: c.full(), Value: c.Training.Algorithm == learner.Reward}.Layout(m.Config)
	if err != nil {
		return p, err
	}
	p.Params, p.Trained = m.Config.NumParams(), layout.Size()
	if p.Memory, err = m.Config.TrainingMemory(lora, (p.MicroTokens+longest-1)/max(longest, 1), longest); err != nil {
		return p, err
	}
	if c.full() { // parameters, their packed form and their gradient
		p.Memory.Adapter = 3 * 4 * int64(p.Trained)
		p.FLOPs = 2 * float64(p.Params) * float64(p.StepTokens) * float64(max(c.Training.NumIterations, 1)) // theirs
	}
	// parameters, start, two moments and a copy of each while a step is made
	p.Host = 4*7*int64(p.Trained) + rows
	p.Checkpoint = 16 * int64(p.Trained)
	if c.Training.Algorithm == learner.PPO {
		if err := p.critic(c, m, longest); err != nil {
			return p, err
		}
	}
	per := 6.
	if c.Training.Beta != 0 {
		per += 2
	}
	if c.Training.LoRADropout > 0 && !c.Training.Offline() { // old log-probabilities, without it
		per += 2
	}
	p.FLOPs += per * float64(p.Params) * float64(p.StepTokens) * float64(max(c.Training.NumIterations, 1))
	return p, nil
}

// critic adds ppo's: its parameters, and as much work again as the policy's.
func (p *Plan) critic(c Config, m *model.Model, longest int) error {
	lora := c.critic().LoRA.Resolve(m.Config)
	layout, err := model.TrainerConfig{LoRA: lora, Value: true}.Layout(m.Config)
	if err != nil {
		return err
	}
	mem, err := m.Config.TrainingMemory(lora, (p.MicroTokens+longest-1)/max(longest, 1), longest)
	if err != nil {
		return err
	}
	p.Memory.Adapter += mem.Adapter
	p.Memory.Activations += mem.Activations
	p.Trained += layout.Size()
	p.Host += 4 * 5 * int64(layout.Size())
	p.Checkpoint += 12 * int64(layout.Size())
	p.FLOPs = (2 + 6*float64(c.Training.NumIterations)) * float64(p.Params) * float64(p.StepTokens)
	return nil
}

// String is the plan for people, a line each.
func (p Plan) String() string {
	const mib = 1 << 20
	var b strings.Builder
	if d := p.Data; d != nil {
		fmt.Fprintf(&b, "data: %d rows, %d tokens, %d trained, longest %d; %d read, %d bad, %d too long, %d truncated; %d rows to evaluate\n",
			d.Rows, d.Tokens, d.Trained, d.Longest, p.Report.Read, p.Report.Bad, p.Report.TooLong, p.Report.Truncated, p.EvalRows)
	}
	fmt.Fprintf(&b, "steps: %d of up to %d tokens, %d at once\n", p.Steps, p.StepTokens, p.MicroTokens)
	total := p.Params
	if p.Train != TrainFull {
		total += int64(p.Trained)
	}
	fmt.Fprintf(&b, "trained: %d of %d parameters\n", p.Trained, total)
	fmt.Fprintf(&b, "memory: %d MiB (weights %d, adapter %d, activations %d) and %d MiB for optimizer and rows\n",
		p.Memory.Total()/mib, p.Memory.Weights/mib, p.Memory.Adapter/mib, p.Memory.Activations/mib, p.Host/mib)
	fmt.Fprintf(&b, "a step: up to %.3g GFLOP; a checkpoint: %.1f MiB\n", p.FLOPs/1e9, float64(p.Checkpoint)/mib)
	return b.String()
}
