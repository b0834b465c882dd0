package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
)

// tinyRun makes a finished run of two steps.
func tinyRun(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	output(t, time.Minute, append([]string{"quickstart", "--dir", dir}, twoSteps...)...)
	return dir
}

var twoSteps = []string{
	"--set", "training.max_steps=2", "--set", "training.warmup_steps=0", "--set", "training.groups_per_step=1", "--set", "eval.tasks=2",
}

// The last line of stdout is one JSON object, whatever the command.
func TestEveryCommandSpeaksJSON(t *testing.T) {
	dir, out := tinyRun(t), filepath.Join(t.TempDir(), "logs.jsonl")
	const rows = "--data ../../testdata/recipes/demonstrations.jsonl --set training.max_steps=2"
	var tail struct{ Logs []logView }
	lastJSON(t, output(t, time.Minute, "log", "tail", "--json", "--dir", dir, "-n", "3"), &tail)
	require.Len(t, tail.Logs, 3)
	require.NotEmpty(t, tail.Logs[0].ID)
	for command, key := range map[string]string{
		"status --dir " + dir:                              "run",
		"log show --dir " + dir + " " + tail.Logs[0].ID:    "events",
		"log export --dir " + dir + " -o " + out:           "logs",
		"log export --dir " + dir + " --format trajectory": "steps",
		"verify step 2 --dir " + dir:                       "ok",
		"doctor":                                           "checks",
		"replay quota --dir " + dir:                        "tenants",
		"train --dry-run":                                  "plan",
		"train sft --dry-run " + rows:                      "plan",
		"train sft --dir " + filepath.Join(t.TempDir(), "sft") + " " + rows: "adapter",
		"model inspect ../../model/testdata/tiny_llama":                     "rollout_bytes",
		"quickstart --dir " + dir + " " + strings.Join(twoSteps, " "):       "heldout_after",
	} {
		var v map[string]any
		lastJSON(t, output(t, time.Minute, append(strings.Fields(command), "--json")...), &v)
		require.Contains(t, v, key, command)
	}
	written, err := os.ReadFile(out)
	require.NoError(t, err)
	require.NotEmpty(t, written)
}

// A training on files is shown and verified by the commands that do so for runs.
func TestRowsRunByCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dpo")
	output(t, time.Minute, "train", "dpo", "--data", "../../testdata/recipes/pairs.jsonl", "--dir", dir,
		"--set", "training.max_steps=2", "--set", "training.save_steps=1", "--set", "training.batch_size=4")
	var status struct {
		Run struct {
			Run, Algorithm string
			Finished       bool
			Step           uint64
		}
	}
	lastJSON(t, output(t, time.Minute, "status", "--dir", dir, "--json"), &status)
	require.Equal(t, "dpo", status.Run.Algorithm)
	require.True(t, status.Run.Finished)
	require.Equal(t, uint64(2), status.Run.Step)
	require.Contains(t, output(t, time.Minute, "status", "--dir", dir), "finished, dpo on rows")
	var rep struct {
		OK   bool    `json:"ok"`
		From *uint64 `json:"from_step"`
	}
	lastJSON(t, output(t, time.Minute, "verify", "step", "2", "--dir", dir, "--json"), &rep)
	require.True(t, rep.OK)
	require.Equal(t, uint64(1), *rep.From)
	require.Contains(t, output(t, time.Minute, "verify", "step", "1", "--dir", dir), "equal, bit for bit")
}

// Bad input is one clear message that names what is wrong and what to do, a
// non-zero status, and with --json an object that says the same.
func TestBadInput(t *testing.T) {
	dir, fresh := tinyRun(t), filepath.Join(t.TempDir(), "fresh")
	recipe := "--config ../../recipes/quickstart.yaml --dir " + fresh
	for command, want := range map[string]string{
		"train " + recipe + " --set training.bogus=1":                                 "training.bogus: unknown key",
		"train " + recipe + " --set training.num_generations=1":                       "training.num_generations: 1 is below 2",
		"train " + recipe + " --set model=/nope.gguf":                                 "pulled reference",
		"train " + recipe + " --set run":                                              "key.path=value",
		"train --config /nope.yaml":                                                   "/nope.yaml",
		"train extra":                                                                 `unknown algorithm "extra"; use one of grpo`,
		"train dpo --data ../../testdata/recipes/demonstrations.jsonl --dir " + fresh: "columns found: difficulty, messages, tools",
		"train sft --dir " + fresh:                                                    "data.train: no files",
		"train sft --data none.jsonl --dir " + fresh:                                  "none.jsonl",
		"train sft extra":                                                             "extra",
		"up --config ../../recipes/store-sft.yaml --dir " + fresh:                     "use skein train sft",
		"quickstart --dir " + dir + " --set lora.rank=8":                              "lora.rank 16, now 8",
		"quickstart --dir " + dir + " --set run=other":                                `holds run "quickstart"`,
		"up --dir " + dir:                                                             "use another --dir",
		"up --replay 2 --dir " + fresh:                                                "--replay: 2",
		"status":                                                                      "say which run",
		"status --dir " + fresh:                                                       "is not the folder of a run",
		"status --dir " + dir + " --run x":                                            "there are: quickstart",
		"log tail --dir " + dir + " --table x":                                        "use one of train, eval",
		"log export --dir " + dir + " --format x -o " + fresh:                         "use one of eventlog",
		"log show --dir " + dir + " x":                                                "skein log tail lists the ids",
		"log show --dir " + dir:                                                       "takes one LOG_ID",
		"verify step 3 --dir " + dir:                                                  "its last step is 2",
		"verify step x --dir " + dir:                                                  "number of a committed step",
		"model inspect embedded:tiny":                                                 "inside this binary",
		"node --role bogus --dir " + fresh:                                            "use replay, worker or learner",
		"node --role replay --dir " + fresh + " --listen 5":                           "host:port",
	} {
		cmd := skein(t, time.Minute, append(strings.Fields(command), "--json")...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.Error(t, cmd.Run(), command)
		var v struct {
			Error      string
			ExitStatus int `json:"exit_status"`
		}
		lastJSON(t, stdout.String(), &v)
		require.Contains(t, v.Error, want, command)
		require.Equal(t, cmd.ProcessState.ExitCode(), v.ExitStatus, command)
		require.Contains(t, stderr.String(), "skein: "+v.Error+"\n", command)
		require.NotContains(t, stderr.String(), "goroutine", command)
	}
	// A start that failed leaves the folder free for the next one.
	require.NoFileExists(t, filepath.Join(fresh, "layout.json"))
}

func TestNodesInOneFolder(t *testing.T) {
	cfg := cluster.DefaultConfig(filepath.Join(t.TempDir(), "replay"))
	n, err := cluster.Open(t.Context(), cfg)
	require.NoError(t, err)
	defer n.Close()
	for _, args := range [][]string{
		{"node", "--role", "replay", "--dir", filepath.Dir(cfg.Dir)},
		{"node", "--role", "replay", "--dir", t.TempDir(), "--listen", n.Addr()},
	} {
		out, err := skein(t, 20*time.Second, args...).CombinedOutput()
		require.Error(t, err)
		require.Regexp(t, "in use by another process|port occupied", string(out))
		require.NotContains(t, string(out), "restarting")
	}
}

// An interrupted quickstart keeps its folder and says how to go on.
func TestInterruptedQuickstartKeepsItsFolder(t *testing.T) {
	cmd := skein(t, time.Minute, "quickstart", "--set", "training.max_steps=500", "--set", "training.groups_per_step=1", "--set", "eval.tasks=0")
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir())
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), stepLine(2)) }, time.Minute, pollEvery)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	_, rest, ok := strings.Cut(stderr.String(), "with --dir ")
	require.True(t, ok, stderr.String())
	dir, _, _ := strings.Cut(rest, " ")
	require.DirExists(t, dir)
	require.True(t, strings.HasSuffix(stderr.String(), "goes on from there\n"), "one message is enough:\n%s", stderr.String())
}

func TestPlain(t *testing.T) {
	inner := fmt.Errorf("cluster: node a: %w", errors.New("replay: unavailable"))
	require.Equal(t, "project: node a: unavailable", plain(fmt.Errorf("project: learner: %w", inner)))
	require.Equal(t, "model: open x: bad file", plain(errors.New("model: open x: model: bad file")))
	require.Equal(t, "replay 3 is gone", plain(errors.New("replay 3 is gone")))
}
