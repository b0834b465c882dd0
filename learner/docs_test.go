package learner

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/learner/preference"
)

// keysOf are the keys of a configuration's YAML.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		name, rest, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if rest == "inline" {
			keys = append(keys, keysOf(t.Field(i).Type)...)
		} else {
			keys = append(keys, name)
		}
	}
	return keys
}

// Every setting, algorithm and loss type is described where a user looks for it.
func TestEverySettingIsDocumented(t *testing.T) {
	var docs string
	for _, name := range []string{"training.md", "training-on-files.md"} {
		b, err := os.ReadFile("../docs/" + name)
		require.NoError(t, err)
		docs += string(b)
	}
	keys := keysOf(reflect.TypeFor[Config]())
	require.Greater(t, len(keys), 90)
	for _, key := range keys {
		require.Regexp(t, "`(training\\.)?"+key+"`", docs, "no page names the setting %s", key)
	}
	names := append(Algorithms(), loss.Types()...)
	names = append(append(names, preference.DPOTypes()...), preference.Divergences...)
	for _, name := range append(names, preference.WeightingWPO, preference.WeightingWPOAligned, preference.ShiftPooled) {
		require.Contains(t, docs, name)
	}
}
