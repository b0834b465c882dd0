package learner

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func decodeYAML(t *testing.T, path string) (Config, error) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	c := DefaultConfig()
	if bytes.Contains(data, []byte("algorithm: sft")) {
		c = DefaultSFTConfig()
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// testdata/*.good.yml decode onto the defaults and survive a round trip;
// testdata/*.bad.yml are refused, each for the reason in its first line.
func TestYAML(t *testing.T) {
	good, err := filepath.Glob("testdata/*.good.yml")
	require.NoError(t, err)
	bad, err := filepath.Glob("testdata/*.bad.yml")
	require.NoError(t, err)
	require.NotEmpty(t, good)
	require.NotEmpty(t, bad)
	for _, p := range good {
		c, err := decodeYAML(t, p)
		require.NoError(t, err, p)
		out, err := yaml.Marshal(c)
		require.NoError(t, err)
		var again Config
		require.NoError(t, yaml.Unmarshal(out, &again))
		require.Equal(t, c, again)
	}
	for _, p := range bad {
		data, err := os.ReadFile(p)
		require.NoError(t, err)
		first, _, _ := strings.Cut(string(data), "\n")
		_, err = decodeYAML(t, p)
		require.ErrorContains(t, err, strings.TrimPrefix(first, "# "), p)
	}
}
