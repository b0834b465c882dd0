package project

import (
	"encoding"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/model"
)

// checkTree compares a configuration tree with the type it is decoded into and
// reports every unknown key and every value of a wrong type by its path. (The
// YAML library would name lines of a text nobody wrote and types of Go.) What
// it leaves in the tree decodes without error: offending entries are removed.
func checkTree(n *yaml.Node, t reflect.Type, path string) (problems []error) {
	bad := func(at, format string, a ...any) {
		problems = append(problems, fmt.Errorf(at+": "+format, a...))
	}
	fields := yamlFields(t)
	seen := map[string]bool{}
	kept := n.Content[:0:0]
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		ft, ok := fields[key.Value]
		switch {
		case !ok:
			if why, known := notOffered[at]; known {
				bad(at, "%s", why)
			} else {
				bad(at, "unknown key: %s", remedy(key.Value, fields))
			}
			continue
		case seen[key.Value]:
			bad(at, "given twice; keep one")
			continue
		}
		seen[key.Value] = true
		if ft.Kind() == reflect.Slice && !readsItself(ft) && isSection(ft.Elem()) && value.Kind == yaml.SequenceNode {
			for k, item := range value.Content {
				if item.Kind == yaml.MappingNode {
					problems = append(problems, checkTree(item, ft.Elem(), fmt.Sprintf("%s[%d]", at, k))...)
				}
			}
		}
		if ft.Kind() == reflect.Pointer && isSection(ft.Elem()) {
			ft = ft.Elem()
		}
		if isSection(ft) {
			if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
				continue // an empty section: its defaults
			}
			if value.Kind != yaml.MappingNode {
				bad(at, "%s is not a section; write its keys below it: %s", shown(value), strings.Join(sorted(yamlFields(ft)), ", "))
				continue
			}
			problems = append(problems, checkTree(value, ft, at)...)
		} else if !fits(value, ft) {
			bad(at, "%s is not %s", shown(value), described(ft))
			continue
		}
		kept = append(kept, key, value)
	}
	n.Content = kept
	return problems
}

// notOffered are keys of other systems that have no counterpart of the same
// form here, with the way to what they are for.
var notOffered = map[string]string{
	"lora.dropout":                         dropoutPlace,
	"lora.lora_dropout":                    dropoutPlace,
	"training.use_weighting":               "WPO's weights are training.weighting: wpo_aligned (what TRL computes) or wpo (without the alignment)",
	"training.sync_ref_model":              "a reference that moves is training.reference: moving",
	"training.filter_groups":               "dynamic sampling is training.constant_groups: resample",
	"training.use_kl_in_reward":            "the algorithm decides: ppo, rloo and reinforce++ have the KL in the reward, grpo in the loss",
	"training.report_to":                   "report_to is a key of watch: watch.report_to: [jsonl, tensorboard]",
	"training.gradient_accumulation_steps": gradientAccumulation,
}

const (
	dropoutPlace         = "dropout belongs to training, not to the adapter: training.lora_dropout"
	gradientAccumulation = "a step is whole rollouts (groups_per_step) cut into micro-batches of training.token_budget, which cannot change the result: leave it out"
)

// fits says whether a value can be read as t without losing anything. The YAML
// library would cut 1.5 to 1 and take 30 for 30 nanoseconds.
func fits(n *yaml.Node, t reflect.Type) bool {
	if n.Decode(reflect.New(t).Interface()) != nil {
		return false
	}
	if t == reflect.TypeFor[time.Duration]() {
		return n.Tag == "!!str" || n.Value == "0"
	}
	if n.Tag == "!!float" && t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		var f float64
		return n.Decode(&f) == nil && f == math.Trunc(f)
	}
	return true
}

// isSection says whether a type is written as a mapping with fixed keys.
func isSection(t reflect.Type) bool {
	_, text := reflect.New(t).Interface().(encoding.TextUnmarshaler)
	return t.Kind() == reflect.Struct && !text
}

// readsItself says whether a type decodes its mapping on its own.
func readsItself(t reflect.Type) bool {
	_, own := reflect.New(t).Interface().(yaml.Unmarshaler)
	return own
}

// yamlFields maps the keys of a struct to the types of their values.
func yamlFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			maps.Copy(out, yamlFields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
	return out
}

func sorted(fields map[string]reflect.Type) []string {
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// remedy suggests the known key that is fewest edits away from name, or all.
func remedy(name string, fields map[string]reflect.Type) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, have := range sorted(fields) {
		if d := edits(name, have); d < distance {
			best, distance = have, d
		}
	}
	if best == "" {
		return "use one of " + strings.Join(sorted(fields), ", ")
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// edits is the Levenshtein distance of two keys.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// shown is a value as its writer sees it.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}

// described says what kind of value a key takes.
func described(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration such as 30s or 5m"
	}
	switch {
	case t == reflect.TypeFor[model.Pattern[int]]():
		return "a mapping of module names to whole numbers"
	case readsItself(t):
		return "a mapping of names to values"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return described(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		return "a whole number of at least 0"
	case reflect.Float64, reflect.Float32:
		return "a number"
	case reflect.Slice:
		return "a list; write it as [a, b]"
	case reflect.Map:
		return "a mapping of names to values"
	}
	return "text"
}
