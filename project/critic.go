package project

import (
	"fmt"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// CriticConfig is ppo's value function, an adapter of its own over the same base.
type CriticConfig struct {
	// LoRA is its shape; unset = lora's.
	LoRA *model.LoRAConfig `yaml:"lora,omitempty"`
	// StartAdapter is the folder of an adapter of that shape to start from, a
	// reward model's or a policy's; "" starts from a fresh one. Without a saved
	// value head every value is 0 at first.
	StartAdapter string `yaml:"start_adapter,omitempty"`
}

func (c Config) validateCritic(bad func(field string, value any, remedy string)) {
	k := c.Critic
	if c.Training.Algorithm != learner.PPO {
		if k.LoRA != nil || k.StartAdapter != "" {
			bad("critic", "set", fmt.Sprintf("only ppo has a critic, not %s: leave it out", c.Training.Algorithm))
		}
		return
	}
	if k.LoRA != nil {
		if err := k.LoRA.Validate(); err != nil {
			bad("critic.lora", err, "give it rank, alpha and targets, or leave it out to use lora's")
		}
	}
}

// critic is the configuration of the critic as one of an adapter with a value
// head.
func (c Config) critic() Config {
	if c.Critic.LoRA != nil {
		c.LoRA = *c.Critic.LoRA
	}
	c.StartAdapter, c.Train = c.Critic.StartAdapter, TrainLoRA
	c.Training.Seed++ // so that a fresh critic is not the fresh policy
	return c
}

// criticLoRA is the critic's shape with targets named for the model; nil but for
// ppo.
func (p *parts) criticLoRA() *model.LoRAConfig {
	if p.cfg.Training.Algorithm != learner.PPO {
		return nil
	}
	l := p.cfg.critic().LoRA.Resolve(p.model.Config)
	return &l
}

// learner makes the run's learner; done frees its trainers. resumed says that
// its state will come from a checkpoint.
func (p *parts) learner(start *model.Adapter, resumed bool) (l *learner.Learner, done func(), err error) {
	ident := p.identity(p.cfg.Run)
	tr, err := p.backend.NewTrainer(p.cfg.Training.Trainer(ident.LoRA, ident.Full))
	if err != nil {
		return nil, nil, err
	}
	if ident.Critic == nil {
		if l, err = learner.New(p.cfg.Training, ident, tr, start.Params); err != nil {
			tr.Close()
		}
		return l, func() { tr.Close() }, err
	}
	ktr, err := p.backend.NewTrainer(model.TrainerConfig{LoRA: *ident.Critic, Value: true})
	if err != nil {
		tr.Close()
		return nil, nil, fmt.Errorf("project: critic: %w", err)
	}
	done = func() { tr.Close(); ktr.Close() }
	kc := p.cfg.critic()
	if resumed {
		kc.StartAdapter = "" // its folder need not be on this machine
	}
	k, err := startOf(kc, p.model, true)
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("project: critic: %w", err)
	}
	if l, err = learner.NewPPO(p.cfg.Training, ident, tr, start.Params, learner.Critic{Trainer: ktr, Start: k.Flat()}); err != nil {
		done()
	}
	return l, done, err
}
