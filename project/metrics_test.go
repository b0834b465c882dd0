package project

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// httpGet asks over a connection of its own, so that none is left behind.
func httpGet(addr, path string) (status int, body string, err error) {
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + addr + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// scrape returns /metrics and its samples by name and labels.
func scrape(t *testing.T, addr string) (text string, samples map[string]string) {
	t.Helper()
	status, text, err := httpGet(addr, "/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, text)
	samples = map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			samples[name] = value
		}
	}
	return text, samples
}

func startMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := serveMetrics("127.0.0.1:0", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// fakeNode is a follower that sees another node.
type fakeNode struct{ panics bool }

func (fakeNode) ID() string { return "b" }

func (f fakeNode) ClusterStatus(context.Context) (cluster.ClusterStatus, error) {
	if f.panics {
		panic("no state")
	}
	return cluster.ClusterStatus{Leader: "a", Term: 3, Commit: 12, Nodes: []cluster.NodeStatus{
		{NodeInfo: cluster.NodeInfo{ID: "a"}, Leader: true, Applied: 12},
		{NodeInfo: cluster.NodeInfo{ID: "b"}, Applied: 11, Missing: 2},
	}}, nil
}

// Store: a follower answers nothing.
func (fakeNode) Store() replay.Store { return nil }

func beat(tokens, rollouts, failed uint64) func() rollout.Heartbeat {
	return func() rollout.Heartbeat {
		return rollout.Heartbeat{Version: 4, Members: 5, Rollouts: rollouts, Failed: failed, Appended: rollouts, Lost: 1,
			Engine: rollout.EngineStats{Generated: tokens}}
	}
}

func TestMetricsOfEveryRole(t *testing.T) {
	m := startMetrics(t)
	_, samples := scrape(t, m.addr)
	for name := range samples {
		require.False(t, strings.HasPrefix(name, "skein_"), "%s: this process has no role yet", name)
	}

	m.replayNode(fakeNode{})
	done := m.working(beat(100, 7, 2))
	var told []string
	hooks := m.learning(learner.Hooks{
		OnStart: func(uint64, uint64, bool) { told = append(told, "start") },
		OnStep:  func(replay.StepRecord, learner.StepResult, *learner.Checkpoint) { told = append(told, "step") },
		OnEmpty: func(int, map[string]int) { told = append(told, "empty") },
		OnLost:  func(error, uint64) { told = append(told, "lost") },
	})
	hooks.OnStart(8, 8, true)
	_, samples = scrape(t, m.addr)
	require.Equal(t, "8", samples["skein_learner_step"], "a resumed learner shows where it stands")
	require.NotContains(t, samples, "skein_learner_reward", "no step in this process yet")
	hooks.OnStep(replay.StepRecord{Step: 9, Version: 10, Metrics: map[string]float64{
		"reward": 0.5, "loss": -0.25, "entropy": 1.5, "grad_norm": 2, "staleness/mean": 0.75, "logprob_gap/mean_abs": 1e-5,
		"num_tokens": 640, "kl": 0.125,
	}}, learner.StepResult{}, nil)
	hooks.OnEmpty(1, nil)
	hooks.OnLost(errors.New("x"), 9)
	require.Equal(t, []string{"start", "step", "empty", "lost"}, told, "the hooks below still hear everything")

	want := map[string]string{
		"skein_cluster_term": "3", "skein_cluster_commit_index": "12", "skein_cluster_applied_index": "11", "skein_cluster_missing_payloads": "2",
		"skein_worker_tokens_total": "100", `skein_worker_rollouts_total{status="completed"}`: "5", `skein_worker_rollouts_total{status="failed"}`: "2",
		`skein_worker_logs_total{result="appended"}`: "7", `skein_worker_logs_total{result="duplicate"}`: "0",
		`skein_worker_logs_total{result="rejected"}`: "0", `skein_worker_logs_total{result="lost"}`: "1",
		"skein_worker_policy_version": "4", "skein_worker_rollouts_in_flight": "5",
		"skein_learner_step": "9", "skein_learner_policy_version": "10", "skein_learner_empty_batches_total": "1", "skein_learner_lost_leases_total": "1",
		"skein_learner_reward": "0.5", "skein_learner_loss": "-0.25", "skein_learner_kl": "0.125", "skein_learner_entropy": "1.5",
		"skein_learner_grad_norm": "2", "skein_learner_staleness_versions": "0.75", "skein_learner_logprob_gap": "1e-05", "skein_learner_tokens": "640",
	}
	_, samples = scrape(t, m.addr)
	for name := range samples {
		if !strings.HasPrefix(name, "skein_") {
			delete(samples, name)
		}
	}
	require.Equal(t, want, samples)

	// The next run's worker counts from 0; the process goes on counting.
	done()
	_, samples = scrape(t, m.addr)
	require.Equal(t, "100", samples["skein_worker_tokens_total"])
	require.Equal(t, "0", samples["skein_worker_rollouts_in_flight"])
	require.NotContains(t, samples, "skein_worker_policy_version")
	defer m.working(beat(20, 1, 1))()
	m.replayNode(nil)
	_, samples = scrape(t, m.addr)
	require.Equal(t, "120", samples["skein_worker_tokens_total"])
	require.Equal(t, "3", samples[`skein_worker_rollouts_total{status="failed"}`])
	require.NotContains(t, samples, "skein_cluster_term", "the node is closed")
}

var allowedLabel = regexp.MustCompile(`^(status|result|le|quantile|version|kind|part|percentile|component|file|run|state|role|alive|node|staleness)$`) // run, node: as many as an operator started

// checkNames lints a scrape: names, units and help by promlint, the prefix, and
// no label that could hold an id.
func checkNames(t *testing.T, text string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		require.Regexp(t, `^(skein|go|process)_`, line)
		for _, l := range regexp.MustCompile(`[{,]([a-z_]+)=`).FindAllStringSubmatch(line, -1) {
			require.Regexp(t, allowedLabel, l[1], line)
		}
	}
}

// A run of one process serves every room's metrics while it works, and leaves
// neither a listener, a goroutine nor its address behind.
func TestMetricsOfARun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := DefaultConfig()
	c.Run, c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations = "m", 1000, 1, 2
	c.Training.MaxCompletionLength, c.Eval.Tasks = 16, 0
	dir := t.TempDir()
	file := filepath.Join(dir, metricsAddrFile)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var addr, text string
	_, err := RunLocal(ctx, c, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Metrics: "127.0.0.1:0",
		Progress: writerFunc(func(b []byte) (int, error) {
			if text == "" && bytes.HasPrefix(b, []byte("step ")) {
				addr, _ = readFirstLine(file)
				_, text, _ = httpGet(addr, "/metrics")
				stop()
			}
			return len(b), nil
		})})
	require.ErrorIs(t, err, context.Canceled)
	for _, line := range []string{
		"skein_cluster_leader 1", `skein_run_groups{run="m",state="open"} [0-9]`, `skein_run_logs_total{result="appended",run="m"} [1-9]`,
		`skein_cluster_nodes{alive="1",role="replay"} 1`, "skein_cluster_term [1-9]", "skein_replay_payloads_total [1-9]", "skein_replay_payload_bytes_total [1-9]",
		"skein_cluster_appended_records_total [1-9]", "skein_cluster_applied_index [1-9]", "skein_worker_tokens_total [1-9]",
		"skein_worker_rollouts_in_flight ", "skein_learner_step [1-9]", "skein_learner_grad_norm ",
		"process_resident_memory_bytes ", "go_goroutines ",
	} {
		require.Regexp(t, "(?m)^"+line, text)
	}
	checkNames(t, text)
	require.NoFileExists(t, file)
	_, _, err = httpGet(addr, "/healthz")
	require.Error(t, err, "nothing listens any more")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestMetricsOfANode(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	file := filepath.Join(dir, metricsAddrFile)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- RunNode(ctx, NodeOptions{Roles: []string{"replay"}, Dir: dir, Log: slog.New(slog.DiscardHandler), Metrics: "127.0.0.1:0"})
	}()
	var text string
	require.Eventually(t, func() bool {
		addr, err := readFirstLine(file)
		if err != nil {
			return false
		}
		_, text, err = httpGet(addr, "/metrics")
		return err == nil && strings.Contains(text, "\nskein_cluster_leader 1\n") && strings.Contains(text, "\nskein_cluster_term ")
	}, 20*time.Second, 20*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	checkNames(t, text)
	require.NoFileExists(t, file)
}

func TestMetricsEndpoint(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	log := slog.New(slog.DiscardHandler)
	m, err := serveMetrics("127.0.0.1:0", log)
	require.NoError(t, err)
	status, body, err := httpGet(m.addr, "/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", body)
	status, _, err = httpGet(m.addr, "/debug/pprof/")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, status)

	_, err = serveMetrics(m.addr, log)
	require.ErrorContains(t, err, `--metrics: "`+m.addr+`": the port is taken`)
	for _, addr := range []string{"9464", "127.0.0.1", "127.0.0.1:port", "192.0.2.1:0"} {
		_, err = serveMetrics(addr, log)
		require.ErrorContains(t, err, `--metrics: "`+addr+`"`)
	}

	dir := t.TempDir()
	require.NoError(t, m.announce(dir))
	text, err := os.ReadFile(filepath.Join(dir, metricsAddrFile))
	require.NoError(t, err)
	require.Equal(t, m.addr+"\n", string(text))
	// Another process has taken the folder over.
	require.NoError(t, writeFile(filepath.Join(dir, metricsAddrFile), []byte("127.0.0.1:1\n")))
	require.NoError(t, m.Close())
	require.FileExists(t, filepath.Join(dir, metricsAddrFile))
}

// Neither a reading that panics nor a client that never ends its request
// reaches the work, and closing does not wait for such a client.
func TestMetricsNeverStopTheWork(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	m, err := serveMetrics("127.0.0.1:0", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	m.replayNode(fakeNode{panics: true})
	m.learning(learner.Hooks{})
	_, samples := scrape(t, m.addr)
	require.Contains(t, samples, "skein_learner_step", "the rest is served")
	m.replayNode(nil) // the panic left nothing locked

	conn, err := net.Dial("tcp", m.addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("GET /metrics HTTP/1.1\r\n"))
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, m.Close())
	require.Less(t, time.Since(began), scrapeTransfer)
}

func TestMetricsOff(t *testing.T) {
	m, err := serveMetrics("", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, m)
	require.True(t, m.registerer() == nil, "a nil interface: rooms compare with nil")
	require.NoError(t, m.announce(t.TempDir()))
	m.replayNode(fakeNode{})
	m.working(beat(1, 1, 0))()
	require.Nil(t, m.learning(learner.Hooks{}).OnStep)
	require.NoError(t, m.Close())
}
