package project

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// Traces follow one rollout from its dispatch to the step that trained it. Their
// spans are made of what is recorded anyway (an EventLog's times, a step's
// record), and a trace's id is a hash of the log's id: every process finds it by
// itself, nothing is handed on, and the wire and the store know nothing of it.
//
//	rollout ── turn, tool ...      worker, from the EventLog
//	        ── append              worker
//	        ── train               learner; linked with the step's own trace
//	step                           learner
//
// It is on when OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) is set; the
// other variables of the OpenTelemetry specification hold as well.

// tracer of one process and run. A nil one does nothing, so callers never ask.
type tracer struct {
	sdk    *sdk.TracerProvider
	tracer trace.Tracer
	log    *slog.Logger

	mu    sync.Mutex
	ended map[string]time.Time // rollouts that are not appended yet
}

// How long the end of a process may wait for its last spans.
const traceFlush = 3 * time.Second

// openTracer returns nil when no endpoint is set.
func openTracer(log *slog.Logger) (*tracer, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	sampler, err := traceSampler()
	if err != nil {
		return nil, err
	}
	exp, err := otlptracehttp.New(context.Background()) // connects later: a collector that is down stops nothing
	if err != nil {
		return nil, fmt.Errorf("project: OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	res, err := resource.New(context.Background(), resource.WithFromEnv(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.name", "skein")))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("project: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces", "error", err) }))
	p := sdk.NewTracerProvider(sdk.WithBatcher(exp), sdk.WithIDGenerator(fixedIDs{}), sdk.WithSampler(sampler), sdk.WithResource(res))
	return &tracer{sdk: p, tracer: p.Tracer("github.com/skein-rl/skein"), log: log, ended: map[string]time.Time{}}, nil
}

// traceSampler keeps a share of the traces. It judges by the trace's id alone,
// so that all processes keep the same ones.
func traceSampler() (sdk.Sampler, error) {
	text := os.Getenv("OTEL_TRACES_SAMPLER_ARG")
	if text == "" {
		return sdk.AlwaysSample(), nil
	}
	share, err := strconv.ParseFloat(text, 64)
	if err != nil || !(share >= 0 && share <= 1) {
		return nil, fmt.Errorf("project: OTEL_TRACES_SAMPLER_ARG = %q: use the share of rollouts to trace, from 0 to 1", text)
	}
	return sdk.TraceIDRatioBased(share), nil
}

// Close sends what is left.
func (t *tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlush)
	defer cancel()
	if err := t.sdk.Shutdown(ctx); err != nil { // a collector that is down is no failure of the run
		t.log.Warn("traces not sent", "error", err)
	}
	return nil
}

// traceOf is the identity of a log's trace and of its first span.
func traceOf(kind, id string) trace.SpanContext {
	h := sha256.Sum256([]byte("skein " + kind + "\x00" + id))
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(h[:16]), SpanID: trace.SpanID(h[16:24]), TraceFlags: trace.FlagsSampled,
	})
}

// fixedIDs gives a first span the identity its context names; the others have
// ids of their own.
type fixedIDs struct{}

type rootKey struct{}

// NewIDs implements sdk.IDGenerator.
func (fixedIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	sc, _ := ctx.Value(rootKey{}).(trace.SpanContext)
	return sc.TraceID(), sc.SpanID()
}

// NewSpanID implements sdk.IDGenerator. What a span is of, and when it began,
// names it well enough.
func (fixedIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	var id trace.SpanID
	seed, _ := ctx.Value(childKey{}).(string)
	h := sha256.Sum256([]byte(seed))
	copy(id[:], h[:8])
	return id
}

type childKey struct{}

// root begins the first span of a trace.
func (t *tracer) root(sc trace.SpanContext, name string, start time.Time, opts ...trace.SpanStartOption) trace.Span {
	_, span := t.tracer.Start(context.WithValue(context.Background(), rootKey{}, sc), name, append(opts, trace.WithNewRoot(), trace.WithTimestamp(start))...)
	return span
}

// child records a span below a trace's first one, which may be another
// process's.
func (t *tracer) child(sc trace.SpanContext, name string, start, end time.Time, opts ...trace.SpanStartOption) {
	var nano [8]byte
	binary.BigEndian.PutUint64(nano[:], uint64(start.UnixNano()))
	ctx := context.WithValue(context.Background(), childKey{}, sc.SpanID().String()+name+string(nano[:]))
	ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
	_, span := t.tracer.Start(ctx, name, append(opts, trace.WithTimestamp(start))...)
	span.End(trace.WithTimestamp(end))
}

// rolling adds the traces to a worker's hooks.
func (t *tracer) rolling(h rollout.Hooks, worker string) rollout.Hooks {
	if t == nil {
		return h
	}
	ended, appended := h.Rollout, h.Appended
	h.Rollout = func(l *eventlog.Log) {
		t.rollout(l, worker)
		if ended != nil {
			ended(l)
		}
	}
	h.Appended = func(it replay.Item, res replay.AppendResult) {
		t.child(traceOf("log", it.LogID), "append", t.endOf(it.LogID), time.Now(), trace.WithAttributes(
			attribute.Bool("skein.duplicate", res.Duplicate), attribute.String("skein.rejected", res.Rejected), attribute.Int("skein.bytes", int(it.Size))))
		if appended != nil {
			appended(it, res)
		}
	}
	return h
}

// rollout records a rollout by its log.
func (t *tracer) rollout(l *eventlog.Log, worker string) {
	m := l.Meta
	sc := traceOf("log", l.ID)
	start, end := lived(l)
	t.mu.Lock()
	t.ended[l.ID] = end
	t.mu.Unlock()
	span := t.root(sc, "rollout", start, trace.WithAttributes(
		attribute.String("skein.log", l.ID), attribute.String("skein.run", m.Run), attribute.String("skein.group", m.Group),
		attribute.Int("skein.member", int(m.Member)), attribute.String("skein.task", m.Source+"/"+m.Task), attribute.String("skein.worker", worker),
		attribute.String("skein.status", m.Status.String())))
	if m.Status == eventlog.Failed || m.Status == eventlog.TimedOut {
		span.SetStatus(codes.Error, m.Cause)
	}
	calls := map[string]time.Time{}
	var turn time.Time // the newest turn's beginning: its text and its calls have the same times
	for _, e := range l.Events {
		if e.Partial || e.Start.IsZero() || e.End.IsZero() {
			continue
		}
		at := trace.WithAttributes(attribute.String("skein.author", e.Author), attribute.Int("skein.seq", int(e.Seq)))
		if e.Span != nil && strings.HasPrefix(e.Author, "agent") && !e.Start.Equal(turn) {
			turn = e.Start
			t.child(sc, "turn", e.Start, e.End, at)
		}
		switch e.Kind {
		case eventlog.ToolCall:
			calls[e.CallID] = e.End
		case eventlog.ToolResult:
			start := e.Start
			if asked, ok := calls[e.CallID]; ok && asked.Before(start) {
				start = asked
			}
			t.child(sc, "tool", start, e.End, at)
		}
	}
	span.End(trace.WithTimestamp(end))
}

// lived is when a rollout began and ended, by its events.
func lived(l *eventlog.Log) (start, end time.Time) {
	start, end = l.Meta.Created, l.Meta.Created
	for _, e := range l.Events {
		if !e.Start.IsZero() && e.Start.Before(start) {
			start = e.Start
		}
		if e.End.After(end) {
			end = e.End
		}
	}
	return start, end
}

// endOf is when a rollout ended, and forgets it.
func (t *tracer) endOf(id string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.ended[id]
	if !ok {
		return time.Now()
	}
	delete(t.ended, id)
	return end
}

// learning adds the traces to a learner's hooks.
func (t *tracer) learning(h learner.Hooks) learner.Hooks {
	if t == nil {
		return h
	}
	step := h.OnStep
	h.OnStep = func(rec replay.StepRecord, res learner.StepResult, c *learner.Checkpoint) {
		t.step(rec)
		if step != nil {
			step(rec, res, c)
		}
	}
	return h
}

// step records a committed step, and in the trace of each of its rollouts that
// it was trained.
func (t *tracer) step(rec replay.StepRecord) {
	sc := traceOf("step", rec.Run+"\x00"+strconv.FormatUint(rec.Step, 10))
	took := time.Duration(rec.Metrics["time/step_s"] * float64(time.Second))
	begin := rec.Committed.Add(-took)
	var parts []attribute.KeyValue // of the step: their order is known, their beginnings are not
	for _, key := range []string{"wait", "fetch", "forward", "reference", "backward", "optimizer"} {
		if s, ok := rec.Metrics["time/"+key+"_s"]; ok {
			parts = append(parts, attribute.Float64("skein.time."+key, s))
		}
	}
	facts := trace.WithAttributes(attribute.String("skein.run", rec.Run), attribute.Int64("skein.step", int64(rec.Step)),
		attribute.Int64("skein.policy_version", int64(rec.Version)), attribute.String("skein.adapter", rec.Adapter))
	links := make([]trace.Link, 0, len(rec.LogIDs))
	for _, id := range rec.LogIDs {
		of := traceOf("log", id)
		t.child(of, "train", begin, rec.Committed, facts, trace.WithLinks(trace.Link{SpanContext: sc}))
		links = append(links, trace.Link{SpanContext: of})
	}
	t.root(sc, "step", begin, facts, trace.WithAttributes(parts...), trace.WithLinks(links...)).End(trace.WithTimestamp(rec.Committed))
}
