package project

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay"
)

// spans collects what a run sends to an OTLP collector, by trace.
type spans struct {
	mu sync.Mutex
	by map[string][]*otlp.Span
}

func startCollector(t *testing.T) *spans {
	s := &spans{by: map[string][]*otlp.Span{}}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var q collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(b, &q) != nil {
			t.Errorf("%s: not an export of traces", r.URL)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, rs := range q.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				for _, sp := range ss.GetSpans() {
					s.by[string(sp.GetTraceId())] = append(s.by[string(sp.GetTraceId())], sp)
				}
			}
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	return s
}

func TestTracesFollowARolloutToItsStep(t *testing.T) {
	got := startCollector(t)
	c := DefaultConfig()
	c.Run, c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations = "m", 2, 2, 2
	c.Training.MaxCompletionLength, c.Eval.Tasks = 48, 0
	dir := t.TempDir()
	_, err := RunLocal(t.Context(), c, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.NoError(t, err)
	st, err := OpenStore(t.Context(), StoreOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer st.Close()
	rec, err := st.Step(t.Context(), "m", 2)
	require.NoError(t, err)

	got.mu.Lock()
	defer got.mu.Unlock()
	sc := traceOf("step", "m\x002")
	id := sc.TraceID()
	step := got.by[string(id[:])]
	require.Len(t, step, 1)
	require.Len(t, step[0].GetLinks(), len(rec.LogIDs))
	for _, log := range rec.LogIDs {
		sc := traceOf("log", log)
		id, first := sc.TraceID(), sc.SpanID()
		names := map[string]*otlp.Span{}
		for _, sp := range got.by[string(id[:])] {
			names[sp.GetName()] = sp
			if sp.GetName() == "rollout" {
				require.Equal(t, first[:], sp.GetSpanId())
			} else {
				require.Equal(t, first[:], sp.GetParentSpanId(), sp.GetName())
			}
			require.LessOrEqual(t, sp.GetStartTimeUnixNano(), sp.GetEndTimeUnixNano())
		}
		for _, want := range []string{"rollout", "turn", "append", "train"} {
			require.Contains(t, names, want, log)
		}
		require.LessOrEqual(t, names["rollout"].GetEndTimeUnixNano(), names["append"].GetEndTimeUnixNano())
		require.Less(t, names["append"].GetStartTimeUnixNano(), names["train"].GetEndTimeUnixNano())
		require.Equal(t, step[0].GetSpanId(), names["train"].GetLinks()[0].GetSpanId())
	}
}

func TestTracesStopNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // nobody listens
	tr, err := openTracer(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	tr.step(replay.StepRecord{Run: "m", Step: 1, Committed: time.Now(), LogIDs: []string{"a"}})
	began := time.Now()
	require.NoError(t, tr.Close())
	require.Less(t, time.Since(began), 2*traceFlush)

	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "half")
	_, err = openTracer(slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, `OTEL_TRACES_SAMPLER_ARG = "half"`)
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
	sampler, err := traceSampler()
	require.NoError(t, err)
	require.Contains(t, sampler.Description(), "0.5")

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	tr, err = openTracer(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, tr)
	require.NoError(t, tr.Close())
}
