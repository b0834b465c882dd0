package xla

import (
	"errors"
	"fmt"
	"log/slog"
)

// PluginEnv names the environment variable with the folder (or folders,
// separated by ":") that hold the PJRT plugin.
const PluginEnv = "PJRT_PLUGIN_LIBRARY_PATH"

// ErrNotBuilt is returned by Open in a binary built without the xla tag.
var ErrNotBuilt = errors.New("xla: built without xla: build with -tags xla and CGO_ENABLED=1; run make plugin")

// ErrNoPlugin is wrapped by Open's error when no plugin for the device is found.
var ErrNoPlugin = errors.New("xla: no PJRT plugin")

// Options says where and how to run.
type Options struct {
	// Plugin is the plugin's folder or file. Empty: the folders of
	// PJRT_PLUGIN_LIBRARY_PATH.
	Plugin string
	// Device is "cpu" (the default), "cuda" or another plugin's name.
	Device string
	// Dtype of base weights, caches and products: "f32" (the default on "cpu") or
	// "bf16" (the default elsewhere).
	Dtype string
	// Devices is how many devices of the plugin trainers use: micro-batches are
	// dealt to them and gradients summed in the order of the batch, so the result is
	// the same bits for any number of equal devices. 0 is one; decoders use the
	// first. On "cpu" the devices are made: parts of one machine, for tests.
	Devices int
	// Shard keeps each layer's base weights (and the embedding) on one of the
	// devices only; a device copies what it computes with, layer by layer. A decoder
	// copies everything to the first device while it is open.
	Shard bool
	// Threads bounds the CPU plugin's worker threads; 0 is one per core.
	Threads int
	// Logger gets compile times at debug level; nil discards them.
	Logger *slog.Logger
}

// withDefaults fills the zero fields and reports every bad one.
func (o Options) withDefaults() (Options, error) {
	if o.Device == "" {
		o.Device = "cpu"
	}
	if o.Dtype == "" {
		o.Dtype = "bf16"
		if o.Device == "cpu" {
			o.Dtype = "f32"
		}
	}
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if o.Dtype != "f32" && o.Dtype != "bf16" {
		errs = append(errs, fmt.Errorf("xla: dtype %q: want f32 or bf16", o.Dtype))
	}
	if o.Devices < 0 {
		errs = append(errs, fmt.Errorf("xla: devices %d: want 0 (one) or more", o.Devices))
	}
	if o.Shard && o.Devices < 2 {
		errs = append(errs, fmt.Errorf("xla: shard with devices %d: want 2 or more to share the weights", o.Devices))
	}
	if o.Threads < 0 {
		errs = append(errs, fmt.Errorf("xla: threads %d: want 0 (one per core) or more", o.Threads))
	}
	return o, errors.Join(errs...)
}
