package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// asSkein makes this test binary behave as the skein command, so that tests
// run real processes, and processes that skein starts are skein too.
const asSkein = "SKEIN_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asSkein) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// skein prepares a run of the command; it is killed when the test ends.
func skein(t *testing.T, limit time.Duration, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asSkein+"=1")
	return cmd
}

// output runs the command to its end and returns stdout; it must succeed.
func output(t *testing.T, limit time.Duration, args ...string) string {
	t.Helper()
	cmd := skein(t, limit, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "skein %s\n%s%s", strings.Join(args, " "), out.String(), errs.String())
	return out.String()
}

// lastJSON decodes the last line of stdout, as scripts do.
func lastJSON(t *testing.T, out string, v any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), v), out)
}

// small makes a run short enough for a test; learning needs more than this, so
// tests that judge learning choose their own size.
var small = []string{
	"--set", "training.groups_per_step=4", "--set", "training.max_steps=4",
	"--set", "eval.every=0", "--set", "eval.tasks=16",
}

func TestQuickstartLearns(t *testing.T) {
	var s project.Summary
	lastJSON(t, output(t, 4*time.Minute, "quickstart", "--json", "--dir", t.TempDir(),
		"--set", "training.max_steps=12", "--set", "eval.every=0", "--set", "eval.tasks=96"), &s)
	require.Equal(t, 12, s.Steps)
	require.Equal(t, "go", s.Backend)
	require.Greater(t, s.HeldoutAfter, s.HeldoutBefore+0.05, "held-out success must rise clearly: %+v", s.Evals)
	require.Greater(t, s.RewardLast, s.RewardFirst)
	require.Zero(t, s.HeldoutFailed)
	for _, p := range s.StepsLog {
		require.LessOrEqual(t, p.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "engine and learner disagree in step %d", p.Step)
	}
}

// The guard above can fail: with a learning rate of zero nothing improves.
func TestQuickstartWithoutLearningDoesNotImprove(t *testing.T) {
	var s project.Summary
	lastJSON(t, output(t, 2*time.Minute, append([]string{"quickstart", "--json", "--dir", t.TempDir(), "--set", "training.learning_rate=0"}, small...)...), &s)
	require.Equal(t, s.HeldoutBefore, s.HeldoutAfter)
	require.False(t, s.Improved())
}

// adapters lists the published adapter of every step of a stopped run.
func adapters(t *testing.T, dir, run string) []string {
	t.Helper()
	ctx := t.Context()
	st, err := project.OpenStore(ctx, project.StoreOptions{Dir: dir, Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	s, err := st.Status(ctx, run)
	require.NoError(t, err)
	require.NotNil(t, s.LastStep)
	var out []string
	for n := uint64(1); n <= s.LastStep.Step; n++ {
		rec, err := st.Step(ctx, run, n)
		require.NoError(t, err)
		out = append(out, rec.Adapter)
	}
	return out
}

func TestInterruptedRunResumesWithTheSameNumbers(t *testing.T) {
	// On-policy, so that what is sampled does not depend on timing.
	args := func(dir string) []string {
		return append([]string{"train", "--config", "../../recipes/quickstart.yaml", "--dir", dir, "--set", "training.max_staleness=0"}, small...)
	}
	whole, parts := t.TempDir(), t.TempDir()
	output(t, 2*time.Minute, args(whole)...)

	cmd := skein(t, 2*time.Minute, args(parts)...)
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "step   2/4") }, time.Minute, 20*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil { // the last steps may have been faster than the signal
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 130, exit.ExitCode(), stderr.String())
		require.Contains(t, stderr.String(), "goes on from there")
	}
	output(t, 2*time.Minute, args(parts)...)
	require.Equal(t, adapters(t, whole, "quickstart"), adapters(t, parts, "quickstart"))
}

func TestUpSurvivesKillingEveryProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := skein(t, 8*time.Minute, "up", "--config", "../../recipes/demo-tiny.yaml", "--dir", dir, "--json", "--workers", "3", "--learners", "2",
		"--set", "training.groups_per_step=4", "--set", "training.max_steps=24", "--set", "eval.every=0", "--set", "eval.tasks=16")
	var stdout, stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	for i, victim := range []string{"worker-0", "learner-0", "replay-0", "worker-1", "replay-1", "learner-1", "replay-2", "learner-0"} {
		// Wait for progress after the fault before the next one: each must be
		// survived, not only their sum.
		step := 1 + 3*i
		require.Eventually(t, func() bool { return strings.Contains(stderr.String(), stepLine(step)) }, 90*time.Second, 20*time.Millisecond,
			"no step %d before killing %s:\n%s", step, victim, stderr.String())
		require.NoError(t, syscall.Kill(childPID(t, cmd.Process.Pid, victim), syscall.SIGKILL))
		if i == 1 { // the third worker has its policies from the others
			passed := regexp.MustCompile(`"policies_from_workers":[1-9]`)
			require.Eventually(t, func() bool { return passed.MatchString(output(t, time.Minute, "status", "--dir", dir, "--json")) }, 30*time.Second, 100*time.Millisecond)
		}
	}
	require.NoError(t, cmd.Wait(), stderr.String())
	var s project.Summary
	lastJSON(t, stdout.String(), &s)
	require.Equal(t, 24, s.Steps)
	require.FileExists(t, filepath.Join(dir, "report.html"))

	checkExactlyOnce(t, dir, s.Run)
	require.Contains(t, output(t, time.Minute, "verify", "step", "9", "--dir", dir), "equal, bit for bit")
	require.Contains(t, output(t, time.Minute, "status", "--dir", dir), "finished")
	require.Contains(t, output(t, time.Minute, "log", "tail", "--dir", dir, "-n", "1"), "train/")
	require.Contains(t, output(t, time.Minute, "model", "export-adapter", "--dir", dir, "--version", "5", "-o", t.TempDir()),
		adapters(t, dir, s.Run)[4])
}

// checkExactlyOnce reads the record of a stopped run: no group trained twice,
// every trained log stored, none staler than the bound.
func checkExactlyOnce(t *testing.T, dir, run string) {
	t.Helper()
	ctx := t.Context()
	st, err := project.OpenStore(ctx, project.StoreOptions{Dir: dir, Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	s, err := st.Status(ctx, run)
	require.NoError(t, err)
	trained := map[string]uint64{}
	version := uint64(0)
	for n := uint64(1); n <= s.LastStep.Step; n++ {
		rec, err := st.Step(ctx, run, n)
		require.NoError(t, err)
		require.Equal(t, version+1, rec.Version)
		for _, g := range rec.Groups {
			require.Zero(t, trained[g], "group %s was trained in steps %d and %d", g, trained[g], n)
			trained[g] = n
		}
		recs, err := st.Fetch(ctx, rec.LogIDs)
		require.NoError(t, err, "step %d trained logs that are gone", n)
		for _, r := range recs {
			if r.Item.Tokens > 0 {
				require.LessOrEqual(t, version-r.Item.MinVersion, s.Spec.MaxStaleness, "log %s in step %d", r.Item.LogID, n)
			}
		}
		version = rec.Version
	}
	var items []replay.Item
	for cursor := ""; ; {
		page, next, err := st.Scan(ctx, run, "train", cursor, 500)
		require.NoError(t, err)
		items = append(items, page...)
		if cursor = next; next == "" {
			break
		}
	}
	require.Equal(t, s.Appended, len(items)+evalItems(t, st, run))
}

func evalItems(t *testing.T, st replay.Store, run string) int {
	t.Helper()
	items, _, err := st.Scan(t.Context(), run, "eval", "", 10000)
	require.NoError(t, err)
	return len(items)
}

// A run in which every rollout fails ends by itself, with the reason, instead
// of being started again for ever.
func TestRunThatCannotLearnEndsWithItsReason(t *testing.T) {
	for _, command := range [][]string{{"train"}, {"up", "--replay", "1", "--workers", "1"}} {
		args := append(command, "--config", "../../recipes/quickstart.yaml", "--dir", t.TempDir(),
			"--set", "rollout.max_len=40", "--set", "eval.tasks=0", "--set", "limits.max_empty=2")
		cmd := skein(t, 2*time.Minute, args...)
		var out lockedBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s ended well:\n%s", command[0], out.String())
		require.Contains(t, out.String(), "came to nothing", command[0])
		require.Contains(t, out.String(), "no room for another turn", command[0])
	}
}
