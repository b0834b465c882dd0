package project

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/internal/tfevents"
)

// watched is what a user watches of a run on rollouts, and where it is told: names
// of metrics, which metrics.jsonl and TensorBoard have; series of Prometheus; words
// of the terminal.
var watched = map[string]struct{ metrics, series, words []string }{
	"loss":              {[]string{"loss"}, []string{"skein_learner_loss"}, []string{"loss "}},
	"reward":            {[]string{"reward", "reward_std"}, []string{"skein_learner_reward", "skein_learner_reward_std"}, []string{"reward "}},
	"by component":      {[]string{"rewards/task/mean", "rewards/quality/mean", "rewards/quality/std"}, []string{`skein_learner_reward_component{component="quality"}`, `skein_learner_reward_component{component="task"}`}, []string{"quality ", "task "}},
	"advantage spread":  {[]string{"advantage/std", "advantage/min", "advantage/max"}, []string{"skein_learner_advantage_std"}, []string{"advantage ±"}},
	"KL":                {[]string{"kl"}, []string{"skein_learner_kl"}, []string{"kl "}},
	"entropy":           {[]string{"entropy", "entropy/p50"}, []string{"skein_learner_entropy"}, []string{"entropy "}},
	"clip fractions":    {[]string{"clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"}, []string{"skein_learner_clipped_ratio"}, []string{"clipped "}},
	"ratios":            {[]string{"engine_ratio/p01", "engine_ratio/p50", "engine_ratio/p99"}, []string{`skein_learner_engine_ratio_percentile{percentile="99"}`}, []string{"ratio "}},
	"logprob gaps":      {[]string{"logprob_gap/mean_abs", "logprob_gap/p50", "logprob_gap/p99", "logprob_gap/k3"}, []string{"skein_learner_logprob_gap", `skein_learner_logprob_gap_percentile{percentile="99"}`, "skein_learner_engine_kl"}, []string{"gap ", "gap p99 "}},
	"staleness, tokens": {[]string{"staleness/mean", "staleness/max", "staleness/p90"}, []string{"skein_learner_staleness_versions"}, []string{"staleness "}},
	"truncation":        {[]string{"completions/clipped_ratio"}, []string{"skein_learner_truncated_ratio"}, []string{"truncated "}},
	"tool calls":        {[]string{"tools/call_frequency", "tools/calls_max", "tools/failure_frequency"}, []string{"skein_learner_tool_calls", "skein_learner_tool_failures_ratio"}, []string{"calls "}},
	"gradient norm":     {[]string{"grad_norm"}, []string{"skein_learner_grad_norm"}, []string{"grad "}},
	"tokens a second":   {[]string{"time/tokens_per_second", "num_tokens"}, []string{"skein_learner_tokens_per_second", "skein_learner_tokens"}, []string{"tok/s"}},
	"time split": {[]string{"time/forward_s", "time/reference_s", "time/backward_s", "time/optimizer_s", "time/wait_s", "time/fetch_s", "time/step_s"},
		[]string{`skein_learner_step_seconds{part="forward"}`, `skein_learner_step_seconds{part="wait"}`, `skein_learner_step_seconds{part="step"}`}, []string{"time ", "forward "}},
	"turns": {[]string{"turns/mean", "turns/reward_mean"}, nil, nil},
}

// distributions have histograms in the event files.
var distributions = []string{"engine_ratio", "logprob_gap", "advantage", "entropy", "staleness", "completions/length", "reward"}

// Everything that is watched reaches all four sinks.
func TestWatchedReachesEverySink(t *testing.T) {
	rm, _ := trainedReward(t)
	dir := t.TempDir()
	out := &scrapingWriter{t: t, dir: dir, after: "step   2/2", keep: &strings.Builder{}}
	_, err := RunLocal(t.Context(), quickRun(t, "training.beta=0.01", "training.reward_weights={task: 1, quality: 0.1}",
		"task.options={turn_rewards: 'true'}", "reward_models=[{name: quality, path: "+rm+"}]"),
		LocalOptions{Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Progress: out, Metrics: "127.0.0.1:0"})
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 2)
	var line stepLineJSON
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &line))
	events := readEvents(t, dir)
	last := events[len(events)-1]
	for what, w := range watched {
		for _, name := range w.metrics {
			require.Contains(t, line.Metrics, name, "%s in metrics.jsonl", what)
			require.Contains(t, last.Scalars, name, "%s in TensorBoard", what)
		}
		for _, name := range w.series {
			require.Contains(t, out.seen, name, "%s in Prometheus", what)
		}
		for _, word := range w.words {
			require.Contains(t, out.keep.String(), word, "%s on the terminal", what)
		}
	}
	histograms := slices.IndexFunc(events, func(e tfevents.Event) bool { return len(e.Histograms) > 0 })
	require.GreaterOrEqual(t, histograms, 0)
	for _, name := range distributions {
		require.Contains(t, events[histograms].Histograms, name)
	}
}
