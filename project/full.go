package project

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// Values of Config.Train: what of the model is trained.
const (
	TrainLoRA = "lora"
	TrainFull = "full"
)

func (c Config) full() bool { return c.Train == TrainFull }

func (c Config) validateTrain(bad func(field string, value any, remedy string)) {
	switch {
	case c.Train == TrainLoRA:
	case !c.full():
		bad("train", fmt.Sprintf("%q", c.Train), `use "lora" (an adapter) or "full" (all weights)`)
	case c.Backend != "go":
		bad("train", c.Train, fmt.Sprintf("backend %s trains adapters only: set backend: go or train: lora", c.Backend))
	case c.Training.Algorithm == learner.Reward:
		bad("train", c.Train, "a reward model is an adapter with a value head: set train: lora")
	}
	if !c.full() {
		return
	}
	if c.StartAdapter != "" {
		bad("start_adapter", c.StartAdapter, "with train: full training starts from the model's own weights: merge the adapter first (skein model merge) and set model to the result")
	}
	if c.Training.LoRADropout > 0 {
		bad("training.lora_dropout", c.Training.LoRADropout, "with train: full there is no adapter to drop from: set it to 0")
	}
}

// trained is the trainer's and the identity's share of the configuration: the
// adapter's shape, with targets named for the model, or that all weights are.
func (c Config) trained(m *model.Model) (lora model.LoRAConfig, full bool) {
	if c.full() {
		return model.LoRAConfig{}, true
	}
	return c.LoRA.Resolve(m.Config), false
}

// fresh is where a training starts without an adapter to start from: a new one of
// its seed, or the model's own weights.
func (c Config) fresh(m *model.Model) (*model.Adapter, error) {
	if c.full() {
		return model.FullOf(m)
	}
	return model.NewAdapter(m.Config, c.LoRA, m.Digest, c.Training.Seed)
}

// maxBlob bounds what the replay store takes as one blob, in bytes: a published
// policy or a checkpoint.
const maxBlob = 1 << 30

// checkFull says up front whether the weights of a model can be trained as a
// whole: they must be writable as a model and, of a run in a store, small enough.
func (c Config) checkFull(m *model.Model) error {
	if !c.full() {
		return nil
	}
	if err := m.CheckSave(); err != nil {
		return fmt.Errorf("project: train: full: the trained model could not be written: %w: set train: lora", err)
	}
	if c.Training.Offline() {
		return nil // its checkpoints are files
	}
	n := m.Config.NumParams()
	vectors := int64(4) // parameters, two moments, start
	if c.Training.Reference == learner.ReferenceMoving {
		vectors++
	}
	if size := 4 * vectors * n; size > maxBlob {
		return fmt.Errorf("project: train: full: %s has %d parameters, a checkpoint of them is %d MiB, and the replay store takes blobs of at most %d MiB (%d parameters): set train: lora, or take a smaller model",
			c.Model, n, size>>20, int64(maxBlob)>>20, maxBlob/(4*vectors))
	}
	return nil
}

// modelDir is where a training on files with train: full leaves its model.
const modelDir = "model"

// saveTrained writes what was trained below dir, an adapter in PEFT's format or a
// model in Hugging Face layout, and says where.
func (c Config) saveTrained(dir string, m *model.Model, a *model.Adapter) (string, error) {
	if !a.Full {
		out := filepath.Join(dir, adapterDir)
		return out, a.Save(out, m.Config, c.Model)
	}
	out := filepath.Join(dir, modelDir)
	merged := *m
	var err error
	if merged.Weights, err = m.Merge(a); err != nil {
		return "", errors.Join(fmt.Errorf("project: %s", out), err)
	}
	return out, merged.Save(out, model.F32)
}
