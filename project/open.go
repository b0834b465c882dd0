package project

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/model/hub"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/model/xla"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// EmbeddedTiny is the name of the model inside the binary.
const EmbeddedTiny = tiny.Name

// OpenModel opens a model by its name in a configuration: the embedded one, a
// path, or a reference that skein model pull has put into the cache. The caller
// closes it.
func OpenModel(name string, options ...model.OpenOption) (*model.Model, error) {
	if name == EmbeddedTiny {
		return tiny.Open()
	}
	if strings.HasPrefix(name, "embedded:") {
		return nil, fmt.Errorf("project: model %q is not in this binary; %q is", name, EmbeddedTiny)
	}
	if _, err := os.Stat(name); err != nil {
		path, ok, refErr := hub.Cached(name, "")
		if refErr == nil && ok {
			return model.Open(path, options...)
		}
		if refErr == nil {
			return nil, fmt.Errorf("project: model %s is not in the cache: fetch it with skein model pull %s", name, name)
		}
		return nil, fmt.Errorf("project: model %q: %w: name a .gguf file, a folder in Hugging Face layout, a pulled reference, or %q", name, err, EmbeddedTiny)
	}
	return model.Open(name, options...)
}

// OpenBackend prepares the configured device for a model, which can be closed
// then. There is no fallback: a device that is not there is an error.
func OpenBackend(c Config, m *model.Model, log *slog.Logger) (model.Backend, error) {
	return openBackend(c, m, log, 1)
}

// openBackend is OpenBackend for a number of runs that train on it: together they
// keep as many activations as one would.
func openBackend(c Config, m *model.Model, log *slog.Logger, runs int) (model.Backend, error) {
	if device, ok := strings.CutPrefix(c.Backend, "xla:"); ok {
		return xla.Open(m, xla.Options{Device: device, Dtype: c.Dtype, Devices: c.Devices, Shard: c.ShardBase, Threads: c.Threads, Logger: log})
	}
	if c.Backend != "go" {
		return nil, fmt.Errorf("project: backend %q: use \"go\" or \"xla:cpu\"", c.Backend)
	}
	return gobackend.New(m, gobackend.Options{Threads: c.Threads, ActivationBytes: gobackend.DefaultActivationBytes / int64(max(runs, 1))})
}

// OpenSource opens the configured task source.
func OpenSource(c Config) (rollout.Source, error) {
	return task.Open(c.Task.Name, c.Task.Options)
}

// parts are what a worker or learner of a run is made of.
type parts struct {
	cfg     Config
	model   *model.Model
	unmodel func() error // gives the model back
	base    *base
	backend model.Backend // the base, as this run has it
	chat    rollout.Chat
	source  rollout.Source
	metrics *metrics // of this process; nil = none
	trace   *tracer  // nil = none
	// dir is where a learner's steps are recorded; "" = nowhere.
	dir string
	// told: the terminal shows steps and warnings too.
	told bool
	log  *slog.Logger
}

// openParts loads what a configuration names and reports every part that
// cannot be had.
func openParts(c Config, log *slog.Logger) (*parts, error) { return openPartsOn(newBases(), c, log) }

// openPartsOn is openParts for a run that shares its base with others.
func openPartsOn(b *bases, c Config, log *slog.Logger) (*parts, error) {
	p := &parts{cfg: c, log: log}
	var errs []error
	var err error
	if p.source, err = OpenSource(c); err != nil {
		errs = append(errs, err)
	}
	if p.model, p.unmodel, err = b.model(c.Model); err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	if p.chat, err = rollout.NewModelChat(p.model, c.Chat.options()...); err != nil {
		errs = append(errs, err)
	} else {
		p.cfg.Chat.CallFormat = p.chat.Calls().Name // what the run's record says
	}
	if p.trace, err = openTracer(log); err != nil {
		errs = append(errs, err)
	}
	if err := c.checkFull(p.model); err != nil {
		errs = append(errs, err)
	}
	if err = errors.Join(errs...); err == nil {
		p.base, err = b.backend(c, p.model, log)
	}
	if err != nil {
		return nil, errors.Join(err, p.trace.Close(), p.unmodel())
	}
	p.backend = p.base.user(c.Share)
	return p, nil
}

// lora is the adapter's shape with targets named for the model.
func (p *parts) lora() model.LoRAConfig { return p.cfg.LoRA.Resolve(p.model.Config) }

// Close frees the device and the model's files, unless other runs stand on them.
func (p *parts) Close() error {
	return errors.Join(p.trace.Close(), p.base.release(), p.unmodel())
}
