package serve

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/rollout"
)

func TestMetrics(t *testing.T) {
	stats := rollout.EngineStats{
		Requests: 7, Failed: 1, Refused: 2, Generated: 90, Prefilled: 300, Scored: 40, Reused: 50, Swaps: 3, Refilled: 20, Busy: 1500 * time.Millisecond, Active: 4, Waiting: 5,
		Adapters: []rollout.AdapterStats{{Requests: 4, Generated: 60, Active: 3, Version: 0}, {Name: "tuned", Version: 9, Requests: 3, Generated: 30, Active: 1}},
	}
	stats.FirstToken.Count, stats.FirstToken.Sum = 3, 2*time.Second
	stats.FirstToken.Buckets[1] = 2
	stats.FirstToken.Buckets[23] = 1 // beyond every bound: +Inf only

	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(engineCollector{func() rollout.EngineStats { return stats }}))
	_, err := reg.Gather() // pedantic: metrics agree with their descriptions
	require.NoError(t, err)

	rec := httptest.NewRecorder()
	Metrics(func() rollout.EngineStats { return stats }).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	got := rec.Body.String()
	for _, line := range strings.Split(strings.TrimSpace(`
skein_engine_requests_total 7
skein_engine_failed_total 1
skein_engine_refused_total 2
skein_engine_generated_tokens_total 90
skein_engine_prefilled_tokens_total 300
skein_engine_scored_tokens_total 40
skein_engine_cached_tokens_total 50
skein_engine_refilled_tokens_total 20
skein_engine_swaps_total 3
skein_engine_busy_seconds_total 1.5
skein_engine_active_requests 4
skein_engine_waiting_requests 5
skein_engine_adapter_requests_total{adapter=""} 4
skein_engine_adapter_requests_total{adapter="tuned"} 3
skein_engine_adapter_generated_tokens_total{adapter="tuned"} 30
skein_engine_adapter_active_requests{adapter="tuned"} 1
skein_engine_adapter_version{adapter="tuned"} 9
skein_engine_time_to_first_token_seconds_bucket{le="6.4e-05"} 0
skein_engine_time_to_first_token_seconds_bucket{le="0.000128"} 2
skein_engine_time_to_first_token_seconds_bucket{le="+Inf"} 3
skein_engine_time_to_first_token_seconds_sum 2
skein_engine_time_to_first_token_seconds_count 3
skein_engine_inter_token_seconds_count 0
`), "\n") {
		require.Contains(t, got, line+"\n")
	}
	require.Contains(t, got, "go_goroutines ")
}
