package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
)

// A training on files that learners of a cluster help makes the adapter that one
// process makes, while one of them is killed.
func TestLearnersHelpATrainingOnFiles(t *testing.T) {
	dir := t.TempDir()
	recipe := []string{"--config", "../../recipes/store-sft.yaml"}
	short := []string{"--set", "training.num_train_epochs=1", "--set", "training.max_steps=12", "--set", "training.batch_tokens=4096",
		"--set", "training.token_budget=400", "--set", "training.eval_steps=100", "--set", "training.label_smoothing=0.05",
		"--set", "data.train=../../testdata/recipes/demonstrations.jsonl"}
	config := append(slices.Clone(recipe), short...)
	alone := filepath.Join(dir, "alone")
	output(t, 2*time.Minute, append([]string{"train", "sft", "--dir", alone}, config...)...)

	var logs lockedBuffer
	nodes := map[string]*exec.Cmd{}
	t.Cleanup(func() {
		for _, p := range nodes {
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait()
		}
	})
	node := func(name string, args ...string) {
		cmd := skein(t, 4*time.Minute, append([]string{"node", "--id", name, "--dir", filepath.Join(dir, name)}, args...)...)
		cmd.Stderr = &logs
		require.NoError(t, cmd.Start())
		nodes[name] = cmd
	}
	node("replay", "--role", "replay")
	var addr string
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "replay", "replay", "addr"))
		addr = strings.TrimSpace(string(raw))
		return err == nil && addr != ""
	}, time.Minute, pollEvery)
	join := []string{"--join", addr, "--token-file", filepath.Join(dir, "replay", "replay", "token")}
	for _, name := range []string{"helper-a", "helper-b"} {
		node(name, slices.Concat([]string{"--role", "learner"}, join, config)...)
	}
	require.Eventually(t, func() bool {
		return strings.Count(logs.String(), "ready to help") == 2
	}, time.Minute, pollEvery, logs.String())
	// The leader knows of them by their heartbeats, and the training is short.
	token, err := os.ReadFile(join[3])
	require.NoError(t, err)
	st, err := project.OpenStore(t.Context(), project.StoreOptions{Join: addr, Token: strings.TrimSpace(string(token)), Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	require.Eventually(t, func() bool {
		cs, err := st.Cluster(t.Context())
		known := 0
		for _, n := range cs.Nodes {
			if n.Role == cluster.RoleLearner && n.Run != "" {
				known++
			}
		}
		return err == nil && known == 2
	}, time.Minute, pollEvery)

	shared := filepath.Join(dir, "shared")
	cmd := skein(t, 3*time.Minute, slices.Concat([]string{"train", "sft", "--dir", shared}, join, config)...)
	var told lockedBuffer
	cmd.Stderr = &told
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(told.String(), "step    4/") }, time.Minute, time.Millisecond, told.String())
	require.NoError(t, nodes["helper-a"].Process.Kill())
	require.NoError(t, cmd.Wait(), told.String())

	read := func(dir string) string { return readAll(t, filepath.Join(dir, "adapter", "adapter_model.safetensors")) }
	require.Equal(t, read(alone), read(shared), "the same numbers in one process")
	helped, helpers := 0.0, 0.0
	f, err := os.Open(filepath.Join(shared, "metrics.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var line struct{ Metrics map[string]float64 }
		require.NoError(t, json.Unmarshal(s.Bytes(), &line))
		helped += line.Metrics["time/helped_micro_batches"]
		helpers = max(helpers, line.Metrics["time/helpers"])
	}
	require.Positive(t, helped)
	require.Positive(t, helpers)

	// Without --join its companions mean nothing.
	out, err := skein(t, time.Minute, "train", "sft", "--data", "../../testdata/recipes/demonstrations.jsonl", "--token-file", "x", "--dir", filepath.Join(dir, "refused")).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "--token-file, --listen: they are of --join")
}
