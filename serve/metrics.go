package serve

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skein-rl/skein/rollout"
)

// engineCollector turns an engine's counters into Prometheus metrics when asked.
type engineCollector struct {
	stats func() rollout.EngineStats
}

var (
	engineCounters = []struct {
		desc *prometheus.Desc
		kind prometheus.ValueType
		of   func(rollout.EngineStats) float64
	}{
		{engineDesc("requests_total", "Requests finished, whatever the outcome."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Requests) }},
		{engineDesc("failed_total", "Requests finished with an error, cancelled ones included."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Failed) }},
		{engineDesc("refused_total", "Requests refused because the queue was full."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Refused) }},
		{engineDesc("generated_tokens_total", "Tokens sampled."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Generated) }},
		{engineDesc("prefilled_tokens_total", "Prompt tokens computed."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Prefilled) }},
		{engineDesc("scored_tokens_total", "Tokens of prompts scored."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Scored) }},
		{engineDesc("cached_tokens_total", "Prompt tokens taken from a cache."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Reused) }},
		{engineDesc("refilled_tokens_total", "Tokens computed again because a policy or adapter was swapped; part of the prefilled ones."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Refilled) }},
		{engineDesc("swaps_total", "Policies and adapters set."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return float64(s.Swaps) }},
		{engineDesc("busy_seconds_total", "Time inside the decoder."), prometheus.CounterValue, func(s rollout.EngineStats) float64 { return s.Busy.Seconds() }},
		{engineDesc("active_requests", "Requests being decoded."), prometheus.GaugeValue, func(s rollout.EngineStats) float64 { return float64(s.Active) }},
		{engineDesc("waiting_requests", "Requests waiting for a slot."), prometheus.GaugeValue, func(s rollout.EngineStats) float64 { return float64(s.Waiting) }},
	}
	// Of each adapter; that of the model itself is "".
	adapterMetrics = []struct {
		desc *prometheus.Desc
		kind prometheus.ValueType
		of   func(rollout.AdapterStats) float64
	}{
		{engineDesc("adapter_requests_total", "Requests finished.", "adapter"), prometheus.CounterValue, func(s rollout.AdapterStats) float64 { return float64(s.Requests) }},
		{engineDesc("adapter_generated_tokens_total", "Tokens sampled.", "adapter"), prometheus.CounterValue, func(s rollout.AdapterStats) float64 { return float64(s.Generated) }},
		{engineDesc("adapter_active_requests", "Requests being decoded.", "adapter"), prometheus.GaugeValue, func(s rollout.AdapterStats) float64 { return float64(s.Active) }},
		{engineDesc("adapter_version", "Version that tokens are sampled under now.", "adapter"), prometheus.GaugeValue, func(s rollout.AdapterStats) float64 { return float64(s.Version) }},
	}
	firstToken    = engineDesc("time_to_first_token_seconds", "From a request's arrival to its first token.")
	betweenTokens = engineDesc("inter_token_seconds", "From one token of a request to the next.")
)

func engineDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("skein_engine_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range engineCounters {
		ch <- m.desc
	}
	for _, m := range adapterMetrics {
		ch <- m.desc
	}
	ch <- firstToken
	ch <- betweenTokens
}

// Collect implements prometheus.Collector.
func (c engineCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	for _, m := range engineCounters {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(s))
	}
	for _, m := range adapterMetrics {
		for _, a := range s.Adapters {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(a), a.Name)
		}
	}
	for desc, h := range map[*prometheus.Desc]rollout.Histogram{firstToken: s.FirstToken, betweenTokens: s.BetweenTokens} {
		buckets := map[float64]uint64{}
		sum := uint64(0)
		for i, n := range h.Buckets[:len(h.Buckets)-1] { // the last one is +Inf
			sum += n
			buckets[rollout.HistogramBound(i).Seconds()] = sum
		}
		ch <- prometheus.MustNewConstHistogram(desc, h.Count, h.Sum.Seconds(), buckets)
	}
}

// Metrics serves an engine's counters in Prometheus' format, with those of the
// process and of Go.
func Metrics(stats func() rollout.EngineStats) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(engineCollector{stats}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
