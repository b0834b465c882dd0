package project

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/learner"
)

// aliases are names that other systems use for a key of ours, within the named
// section ("" = top level). They are accepted with a printed note.
var aliases = map[string]map[string]string{
	"training": {
		"lr": "learning_rate", "group_size": "num_generations", "n": "num_generations", "G": "num_generations",
		"clip_ratio": "epsilon", "clip_eps": "epsilon", "eps": "epsilon", "clip_ratio_high": "epsilon_high",
		"kl_coef": "beta", "kl_loss_coef": "beta", "kl_beta": "beta",
		"max_response_length": "max_completion_length", "max_new_tokens": "max_completion_length",
		"ppo_epochs": "num_iterations", "num_ppo_epochs": "num_iterations", "cliprange": "epsilon", "gae_lambda": "lam", "lambda": "lam", "mu": "num_iterations", "max_off_policy_steps": "max_staleness",
		"total_steps": "max_steps", "grad_clip": "max_grad_norm",
		"num_epochs": "num_train_epochs", "per_device_train_batch_size": "batch_size", "pref_loss": "loss_type", "pref_beta": "beta", "pref_ftx": "rpo_alpha", "dpo_label_smoothing": "label_smoothing", "label_smoothing_factor": "label_smoothing",
	},
	"data": {"dataset": "train", "max_seq_length": "max_length", "cutoff_len": "max_length", "val_size": "eval_split", "test_size": "eval_split"},
	"lora": {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets", "use_rslora": "rslora"},
}

// Load reads a configuration onto the defaults: the YAML file at path (""
// takes the defaults alone), then every "key.path=value" of sets. Unknown keys,
// wrong types and invalid values are all reported together. Notes tell which
// aliases were understood as which keys.
func Load(path string, sets []string) (cfg Config, notes []string, err error) {
	var text []byte
	if path != "" {
		if text, err = os.ReadFile(path); err != nil {
			return Config{}, nil, fmt.Errorf("project: reading the configuration: %w", err)
		}
	}
	cfg, notes, err = parse(text, sets)
	if err != nil && path != "" {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return cfg, notes, err
}

// Parse reads a configuration from YAML text, as Load does.
func Parse(text []byte) (Config, error) {
	cfg, _, err := parse(text, nil)
	return cfg, err
}

func parse(text []byte, sets []string) (Config, []string, error) {
	root := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // empty: all defaults
	case err != nil:
		return Config{}, nil, err
	default:
		if root = doc.Content[0]; root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		if root.Kind != yaml.MappingNode {
			return Config{}, nil, fmt.Errorf("line %d: a configuration is a mapping of keys to values", root.Line)
		}
	}
	notes, err := renameAliases(root)
	if err != nil {
		return Config{}, nil, err
	}
	for _, s := range sets {
		note, err := set(root, s)
		if err != nil {
			return Config{}, nil, err
		}
		if note != "" && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	simplify(root)
	problems := checkTree(root, reflect.TypeFor[Config](), "")
	cfg := DefaultConfig()
	if a := lookup(root, "training"); a != nil && a.Kind == yaml.MappingNode {
		if name := lookup(a, "algorithm"); name != nil {
			cfg.Training = learner.DefaultConfigOf(name.Value)
		}
	}
	if err := root.Decode(&cfg); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(append(problems, cfg.Validate())...); err != nil {
		return Config{}, notes, err
	}
	return cfg, notes, nil
}

// simplify reads two short forms: a path where data.train and data.eval have a
// list of sources, and a list where training.loss_type has names joined by "+".
func simplify(root *yaml.Node) {
	if d := lookup(root, "data"); d != nil && d.Kind == yaml.MappingNode {
		for _, key := range []string{"train", "eval"} {
			n := lookup(d, key)
			if n == nil {
				continue
			}
			if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
				path := *n
				*n = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{&path}}
			}
			for i, item := range n.Content {
				if n.Kind == yaml.SequenceNode && item.Kind == yaml.ScalarNode {
					key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "path"}
					n.Content[i] = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, item}}
				}
			}
		}
	}
	if t := lookup(root, "training"); t != nil && t.Kind == yaml.MappingNode {
		if n := lookup(t, "loss_type"); n != nil && n.Kind == yaml.SequenceNode {
			var names []string
			for _, item := range n.Content {
				names = append(names, item.Value)
			}
			*n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.Join(names, "+")}
		}
	}
}

// set applies "a.b.c=value" (value in YAML) to a mapping tree. An alias is
// read as the key it stands for, which the note says.
func set(root *yaml.Node, assignment string) (note string, err error) {
	key, value, ok := strings.Cut(assignment, "=")
	if !ok || key == "" {
		return "", fmt.Errorf("--set %q: write it as key.path=value", assignment)
	}
	if section, alias, ok := strings.Cut(key, "."); ok {
		if name, ok := aliases[section][alias]; ok {
			key, note = section+"."+name, aliasNote(section, alias, name)
		}
	}
	var v yaml.Node
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		return "", fmt.Errorf("--set %s: the value %q is not YAML: %w", key, value, err)
	}
	leaf := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: ""}
	if len(v.Content) == 1 {
		leaf = v.Content[0]
	}
	at := root
	parts := strings.Split(key, ".")
	for i, p := range parts {
		child := lookup(at, p)
		if i == len(parts)-1 {
			if child != nil {
				*child = *leaf
			} else {
				at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: p}, leaf)
			}
			return note, nil
		}
		if child == nil {
			child = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: p}, child)
		}
		if child.Kind != yaml.MappingNode {
			return "", fmt.Errorf("--set %s: %q is not a section", key, strings.Join(parts[:i+1], "."))
		}
		at = child
	}
	return note, nil
}

func lookup(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

func renameAliases(root *yaml.Node) (notes []string, err error) {
	for section, names := range aliases {
		m := root
		if section != "" {
			if m = lookup(root, section); m == nil || m.Kind != yaml.MappingNode {
				continue
			}
		}
		for i := 0; i+1 < len(m.Content); i += 2 {
			alias := m.Content[i].Value
			name, ok := names[alias]
			if !ok {
				continue
			}
			if lookup(m, name) != nil {
				return nil, fmt.Errorf("%s.%s and %s.%s mean the same: keep one", section, alias, section, name)
			}
			m.Content[i].Value = name
			notes = append(notes, aliasNote(section, alias, name))
		}
	}
	slices.Sort(notes)
	return notes, nil
}

func aliasNote(section, alias, name string) string {
	return fmt.Sprintf("%s.%s is read as %s.%s", section, alias, section, name)
}

// YAML is the resolved configuration as saved with the run.
func (c Config) YAML() ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("project: encoding the configuration: %w", err)
	}
	return b.Bytes(), nil
}
