// Package task holds the built-in task sources and opens them by name.
//
// A source is deterministic: index i is the same task on every node, and tasks
// of the training and held-out index spaces differ in content.
package task

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/rollout"
)

// Options are a source's settings by name, as they stand in a config file.
type Options map[string]string

// Identified sources have an identity to keep in checkpoints.
type Identified interface {
	// Identity is "name:blake3:<hex>" over everything that decides which task
	// an index is.
	Identity() string
}

// Identity returns a source's identity. Resuming a run whose checkpoint holds
// another identity would read other tasks at the same indices.
func Identity(s rollout.Source) string {
	if id, ok := s.(Identified); ok {
		return id.Identity()
	}
	return s.Name()
}

type opener struct {
	options []string // valid option names
	open    func(Options) (rollout.Source, error)
}

var sources = map[string]opener{
	"store":       {storeOptions, func(o Options) (rollout.Source, error) { return openStore(o) }},
	"gsm8k":       {gsm8kOptions, func(o Options) (rollout.Source, error) { return openGSM8K(o) }},
	"bfcl_simple": {bfclOptions, func(o Options) (rollout.Source, error) { return openBFCL(o) }},
}

// Names lists the sources in alphabetical order.
func Names() []string {
	out := make([]string, 0, len(sources))
	for n := range sources {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// Open returns the named source. Errors name an unknown source or option and
// list the valid ones.
func Open(name string, options Options) (rollout.Source, error) {
	o, ok := sources[name]
	if !ok {
		return nil, fmt.Errorf("task: unknown source %q; sources: %s", name, strings.Join(Names(), ", "))
	}
	known := map[string]bool{}
	for _, k := range o.options {
		known[k] = true
	}
	var errs []error
	for k, v := range options {
		if !known[k] {
			errs = append(errs, fmt.Errorf("task %s: unknown option %s=%q; options: %s", name, k, v, strings.Join(o.options, ", ")))
		}
	}
	if len(errs) > 0 {
		sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
		return nil, errors.Join(errs...)
	}
	s, err := o.open(options)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", name, err)
	}
	return s, nil
}

func digest(parts ...string) string {
	h := blake3.New(32, nil)
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return fmt.Sprintf("blake3:%x", h.Sum(nil))
}
