package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// Two tenants share a cluster of processes: one replay node, one worker for all
// tenants, and a learner of each. Both runs come to their end with the adapters
// that the same two runs get when one process trains them at once, no tenant sees
// the other's run, and quotas show and bound what they use.
func TestTwoTenantsShareACluster(t *testing.T) {
	dir := t.TempDir()
	config := func(run, seed string) string {
		text, err := os.ReadFile("../../recipes/demo-tiny.yaml")
		require.NoError(t, err)
		cfg, _, err := project.Load("../../recipes/demo-tiny.yaml", []string{"run=" + run, "training.seed=" + seed, "training.max_steps=2", "training.groups_per_step=2",
			"training.max_staleness=0", "eval.every=0", "eval.tasks=4"})
		require.NoError(t, err, string(text))
		y, err := cfg.YAML()
		require.NoError(t, err)
		path := filepath.Join(dir, run+".yaml")
		require.NoError(t, os.WriteFile(path, y, 0o600))
		return path
	}
	a, b := config("run-a", "1"), config("run-b", "2")

	// At once in one process.
	var many struct {
		Runs []project.ManyOutcome
	}
	lastJSON(t, output(t, 3*time.Minute, "train", "--config", a, "--config", b, "--dir", filepath.Join(dir, "many"), "--json"), &many)
	require.Len(t, many.Runs, 2)
	for _, o := range many.Runs {
		require.Equal(t, project.StateFinished, o.State)
		require.Equal(t, 2, o.Summary.Steps)
	}

	// In a cluster.
	var procs []*exec.Cmd
	var logs lockedBuffer
	t.Cleanup(func() {
		for _, p := range slices.Backward(procs) {
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait()
		}
	})
	node := func(name string, args ...string) {
		cmd := skein(t, 4*time.Minute, append([]string{"node", "--id", name, "--dir", filepath.Join(dir, name)}, args...)...)
		cmd.Stderr = &logs
		require.NoError(t, cmd.Start())
		procs = append(procs, cmd)
	}
	node("replay", "--role", "replay")
	var addr string
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "replay", "replay", "addr"))
		addr = strings.TrimSpace(string(raw))
		return err == nil && addr != ""
	}, time.Minute, pollEvery)
	own := filepath.Join(dir, "replay", "replay", "token")
	token := func(tenant string) string {
		path := filepath.Join(dir, tenant+".token")
		require.NoError(t, os.WriteFile(path, []byte(output(t, time.Minute, "tenant", "token", tenant, "--token-file", own)), 0o600))
		return path
	}
	ta, tb := token("team-a"), token("team-b")
	join := func(token string) []string { return []string{"--join", addr, "--token-file", token} }
	output(t, time.Minute, append([]string{"replay", "quota", "team-b", "--tickets", "1", "--logs", "1000"}, join(own)...)...)
	node("worker", append([]string{"--role", "worker", "--tenant", "*"}, join(own)...)...)
	node("learner-a", append([]string{"--role", "learner", "--config", a}, join(ta)...)...)
	node("learner-b", append([]string{"--role", "learner", "--config", b}, join(tb)...)...)

	st, err := project.OpenStore(t.Context(), project.StoreOptions{Join: addr, Token: strings.TrimSpace(readAll(t, own)), Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	var trained = map[string][]string{}
	for _, run := range []string{"run-a", "run-b"} {
		require.Eventually(t, func() bool {
			s, err := st.Status(t.Context(), run)
			return err == nil && s.Finished
		}, 3*time.Minute, pollEvery, "run %s does not end:\n%s", run, logs.String())
		for n := uint64(1); n <= 2; n++ {
			rec, err := st.Step(t.Context(), run, n)
			require.NoError(t, err)
			trained[run] = append(trained[run], rec.Adapter)
		}
		require.Equal(t, adapters(t, filepath.Join(dir, "many", run), run), trained[run], "the same numbers in one process")
	}

	// Each tenant sees its own.
	for tok, run := range map[string]string{ta: "run-a", tb: "run-b"} {
		require.Contains(t, output(t, time.Minute, append([]string{"status", "--run", run}, join(tok)...)...), run)
		other := map[string]string{"run-a": "run-b", "run-b": "run-a"}[run]
		out, err := skein(t, time.Minute, append([]string{"status", "--run", other}, join(tok)...)...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "there is no such run; there are: ")
		out, err = skein(t, time.Minute, append([]string{"replay", "quota", "team-a", "--logs", "1"}, join(tok)...)...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "denied")
	}
	var quotas struct{ Tenants []quotaView }
	lastJSON(t, output(t, time.Minute, append([]string{"replay", "quota", "--json"}, join(own)...)...), &quotas)
	require.Len(t, quotas.Tenants, 3)
	require.Equal(t, []string{replay.DefaultTenantName, "team-a", "team-b"}, []string{quotas.Tenants[0].Tenant, quotas.Tenants[1].Tenant, quotas.Tenants[2].Tenant})
	require.Equal(t, uint32(1), quotas.Tenants[2].Quota.Tickets)
	require.Equal(t, quotas.Tenants[1].Logs, quotas.Tenants[2].Logs, "equal runs")
	require.Positive(t, quotas.Tenants[2].Logs)
	require.Zero(t, quotas.Tenants[2].Tickets)
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}
