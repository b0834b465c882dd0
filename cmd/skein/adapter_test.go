package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
)

// An exported adapter is the very one a step published, for the base it was
// trained on; what cannot be exported is refused with its reason.
func TestExportAdapter(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	output(t, time.Minute, "quickstart", "--dir", dir, "--set", "training.max_steps=2", "--set", "training.warmup_steps=0",
		"--set", "training.groups_per_step=4", "--set", "eval.every=0", "--set", "eval.tasks=0")
	published := adapters(t, dir, "quickstart")
	require.Len(t, published, 2)
	require.NotEqual(t, published[0], published[1])
	base, err := tiny.Open()
	require.NoError(t, err)

	for _, tc := range []struct {
		args    []string
		version uint64
	}{
		{nil, 2},
		{[]string{"--version", "1"}, 1},
	} {
		to := filepath.Join(out, "adapter") // the second replaces the first
		var rep exportReport
		lastJSON(t, output(t, time.Minute, append([]string{"model", "export-adapter", "--json", "--dir", dir, "-o", to}, tc.args...)...), &rep)
		a, err := model.LoadAdapter(to, base.Config)
		require.NoError(t, err)
		require.Equal(t, published[tc.version-1], a.Digest())
		require.NoError(t, a.CheckBase(base.Digest))
		require.Equal(t, exportReport{Run: "quickstart", Version: tc.version, Step: tc.version, Digest: a.Digest(), LoRA: a.LoRA,
			BaseModel: tiny.Name, BaseDigest: base.Digest, Output: to}, rep)
	}

	saved := filepath.Join(out, "base")
	text := output(t, time.Minute, "model", "export-adapter", "--dir", dir, "-o", filepath.Join(out, "with-base"), "--save-base", saved)
	require.Contains(t, text, "policy version 2 of run quickstart (step 2), "+published[1])
	require.Contains(t, text, "base "+saved)
	again, err := model.Open(saved)
	require.NoError(t, err)
	require.Equal(t, base.Digest, again.Digest)

	for version, want := range map[string]string{
		"0": "it is the base model, without an adapter",
		"3": "no policy version 3: it has 0 to 2",
	} {
		to := filepath.Join(out, "none")
		msg, err := skein(t, time.Minute, "model", "export-adapter", "--dir", dir, "--version", version, "-o", to).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Contains(t, string(msg), want)
		require.NoDirExists(t, to)
	}
}
