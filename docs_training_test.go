package skein_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/watch"
)

// keysOf lists the configuration keys of a struct, those of inlined ones too.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		name, rest, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if strings.Contains(rest, "inline") {
			keys = append(keys, keysOf(t.Field(i).Type)...)
		} else if name != "" && name != "-" {
			keys = append(keys, name)
		}
	}
	return keys
}

// Every key of training on rollouts and of early warnings is in its page, every
// kind of warning too.
func TestTrainingPageNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile("docs/training.md")
	if err != nil {
		t.Fatal(err)
	}
	offline := map[string]bool{}
	for _, k := range keysOf(reflect.TypeFor[learner.OfflineConfig]()) {
		offline[k] = true
	}
	keys := append(keysOf(reflect.TypeFor[learner.Config]()), keysOf(reflect.TypeFor[watch.Config]())...)
	if len(keys) < 60 {
		t.Fatalf("found %d keys only", len(keys))
	}
	for _, k := range keys {
		if !offline[k] && !strings.Contains(string(page), "`"+k+"`") && !strings.Contains(string(page), "`watch."+k+"`") {
			t.Errorf("docs/training.md does not name %s", k)
		}
	}
	for _, kind := range watch.Kinds() {
		if !strings.Contains(string(page), "| "+kind+" |") {
			t.Errorf("docs/training.md does not list the warning %s", kind)
		}
	}
}
