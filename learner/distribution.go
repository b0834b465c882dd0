package learner

import (
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/internal/spread"
)

// histogramBuckets is the resolution of StepResult.Histograms.
const histogramBuckets = 30

// maxComponents bounds the reward components that become metrics, so that a
// reward which invents names cannot fill the store; the first by name are kept.
const maxComponents = 32

// traits are what an episode's log tells beside its tokens.
type traits struct {
	calls, failed int                // tool calls, and those whose result is an error
	components    map[string]float64 // of the episode reward
}

func traitsOf(l *eventlog.Log) traits {
	t := traits{components: map[string]float64{}}
	for _, e := range l.History() {
		switch e.Kind {
		case eventlog.ToolCall:
			t.calls += len(e.Calls())
		case eventlog.ToolResult:
			if msg, _ := e.Payload["error"].(string); msg != "" {
				t.failed++
			}
		}
	}
	for name, v := range components(l) {
		if x, ok := toFloat(v); ok && len(name) <= 64 {
			t.components[name] = x
		}
	}
	return t
}

// measure adds the quantiles of m under name/p<percent>.
func measure(m map[string]float64, name string, s spread.Spread, percents ...int) {
	if s.Len() == 0 {
		return
	}
	for _, p := range percents {
		m[fmt.Sprintf("%s/p%02d", name, p)] = s.Quantile(float64(p) / 100)
	}
}

// distributions adds how a step's numbers spread, and gives their histograms.
// Those of log-probabilities are before the step's first update, over computed
// tokens:
//
//	logprob_gap/k1, k3   estimates of KL(engine || learner), in nats a token
//	logprob_gap/p50...   |log π_learner - log π_engine|
//	engine_ratio/p01...  π_learner/π_engine, within [1e-30, 1e30]
//	advantage/...        over rollouts with tokens, or tokens where each has its own
//	entropy/p10...       of the last pass
//	staleness/p50...     policy versions, over trained tokens
//	rewards/NAME/...     of each component of the episode reward
//	turns/...            mean a rollout; of their rewards, where turns have any
//	tools/...            call_frequency (calls a rollout), failure_frequency (failed a call)
func (s *stepRun) distributions(m map[string]float64) map[string]spread.Histogram {
	const ratioBound = 69 // exp of it is 1e30
	var gap, ratio, entropy, adv, lag, length, rewards []float64
	k1, k3 := 0.0, 0.0
	for i, e := range s.b.Episodes {
		rewards = append(rewards, e.Reward)
		length = append(length, float64(e.Tokens))
		for _, v := range e.Versions {
			lag = append(lag, float64(s.l.version-v))
		}
		if e.Tokens == 0 {
			continue
		}
		if a := s.rows[i].Adv; len(a) != 1 || s.critic == nil {
			adv = append(adv, a...)
		}
		if !s.l.needed(e) {
			continue
		}
		entropy = append(entropy, s.rows[i].Entropy...)
		for t, old := range s.old[i] {
			d := min(max(old-e.Sampled[t], -ratioBound), ratioBound)
			gap = append(gap, math.Abs(old-e.Sampled[t]))
			ratio = append(ratio, math.Exp(d))
			k1 -= d
			k3 += math.Expm1(d) - d
		}
	}
	out := map[string]spread.Histogram{}
	for name, v := range map[string][]float64{"logprob_gap": gap, "engine_ratio": ratio, "entropy": entropy, "advantage": adv,
		"staleness": lag, "completions/length": length, "reward": rewards} {
		if d := spread.Of(v); d.Len() > 0 {
			out[name] = d.Histogram(histogramBuckets)
		}
	}
	if n := float64(len(gap)); n > 0 {
		m["logprob_gap/k1"], m["logprob_gap/k3"] = k1/n, k3/n
	}
	measure(m, "logprob_gap", spread.Of(gap), 50, 90, 99)
	measure(m, "engine_ratio", spread.Of(ratio), 1, 10, 50, 90, 99)
	measure(m, "entropy", spread.Of(entropy), 10, 50, 90)
	measure(m, "staleness", spread.Of(lag), 50, 90)
	measure(m, "completions/length", spread.Of(length), 50, 90)
	if a := spread.Of(adv); a.Len() > 0 {
		m["advantage/mean"], m["advantage/std"], m["advantage/min"], m["advantage/max"] = a.Mean, a.Std, a.Min, a.Max
	}
	s.traits(m)
	s.turnMetrics(m)
	return out
}

// traits adds what the logs tell beside their tokens.
func (s *stepRun) traits(m map[string]float64) {
	calls, failed, most := 0, 0, 0
	parts := map[string][]float64{}
	for _, e := range s.b.Episodes {
		calls, failed, most = calls+e.traits.calls, failed+e.traits.failed, max(most, e.traits.calls)
		for name, x := range e.traits.components {
			parts[name] = append(parts[name], x)
		}
	}
	m["tools/call_frequency"] = float64(calls) / float64(len(s.b.Episodes))
	m["tools/calls_max"] = float64(most)
	if calls > 0 {
		m["tools/failure_frequency"] = float64(failed) / float64(calls)
	}
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	for k, name := range names {
		if k == maxComponents {
			m["rewards/components_left_out"] = float64(len(names) - k)
			break
		}
		d := spread.Of(parts[name])
		m["rewards/"+name+"/mean"], m["rewards/"+name+"/std"] = d.Mean, d.Std
	}
}
