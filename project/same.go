package project

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// ErrOtherConfig refuses to go on with a run under another configuration than
// the one it was started with: its record could not be recomputed (P5), and
// half of its processes would not notice.
var ErrOtherConfig = errors.New("another configuration")

// machineKeys may differ between the starts of a run: they say where and how
// fast it computes, not what. (The base model is compared by digest.)
var machineKeys = []string{"model", "threads", "memory_limit_mb", "share", "limits.", "watch."}

// sameRun says whether the run of a configuration may be started or continued
// in the store: it does not exist yet, or has this very configuration.
func sameRun(ctx context.Context, st replay.Store, c Config) error {
	s, err := st.Status(ctx, c.Run)
	if errors.Is(err, replay.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	have, err := Parse(s.Spec.Config)
	if err != nil {
		return fmt.Errorf("project: configuration of run %s: %w", c.Run, err)
	}
	diffs, err := differences(have, c)
	if err != nil || len(diffs) == 0 {
		return err
	}
	return fmt.Errorf("project: run %s was started with %w: %s: use the same values, or start a run of its own in another --dir",
		c.Run, ErrOtherConfig, strings.Join(diffs, "; "))
}

// checkRun says whether these parts may start or continue their run.
func (p *parts) checkRun(ctx context.Context, st replay.Store) error {
	if err := sameRun(ctx, st, p.cfg); err != nil {
		return err
	}
	s, err := st.Status(ctx, p.cfg.Run)
	if errors.Is(err, replay.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return sameBase(s.Spec, p.cfg.Model, p.model.Digest)
}

// sameBase says whether a model is the one that a run trains.
func sameBase(spec replay.RunSpec, name, digest string) error {
	if digest == spec.BaseDigest {
		return nil
	}
	return fmt.Errorf("project: run %s was started with %w: base %s, but model %s has digest %s: use the same weights on every node and in every start",
		spec.Run, ErrOtherConfig, spec.BaseDigest, name, digest)
}

// callFormatKey is compared once the model is open: until then "auto" may stand
// for any format.
const callFormatKey = "chat.call_format"

// differences lists the keys that two configurations of a run disagree about.
func differences(have, want Config) (out []string, err error) {
	a, err := flat(have)
	if err != nil {
		return nil, err
	}
	b, err := flat(want)
	if err != nil {
		return nil, err
	}
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if isResolved(k) && (a[k] == "" || b[k] == "") {
			continue
		}
		if k == callFormatKey && (a[k] == rollout.AutoCallFormat || b[k] == rollout.AutoCallFormat) {
			continue
		}
		if a[k] != b[k] && !slices.ContainsFunc(machineKeys, func(m string) bool { return k == m || strings.HasSuffix(m, ".") && strings.HasPrefix(k, m) }) {
			out = append(out, fmt.Sprintf("%s %s, now %s", k, orUnset(a[k]), orUnset(b[k])))
		}
	}
	return out, nil
}

// isResolved says that a key is filled in when the run is created: the digests of
// reward models.
func isResolved(key string) bool {
	return strings.HasPrefix(key, "reward_models[") && strings.HasSuffix(key, "].digest")
}

func orUnset(v string) string {
	if v == "" {
		return "unset"
	}
	return v
}

// flat lists a configuration's values by their paths.
func flat(c Config) (map[string]string, error) {
	text, err := c.YAML()
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("project: %w", err)
	}
	out := map[string]string{}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], strings.TrimPrefix(path+"."+n.Content[i].Value, "."))
			}
		case yaml.SequenceNode:
			var parts []string
			for i, e := range n.Content {
				if e.Kind != yaml.ScalarNode {
					walk(e, fmt.Sprintf("%s[%d]", path, i))
					continue
				}
				parts = append(parts, e.Value)
			}
			out[path] = "[" + strings.Join(parts, ", ") + "]"
		default:
			out[path] = n.Value
		}
	}
	walk(doc.Content[0], "")
	return out, nil
}
