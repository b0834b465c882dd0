package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
)

// episode is one running rollout: the transcript the engine sees, the log that
// records it, and what the reward will see.
type episode struct {
	loop    *Loop
	task    Task
	req     Request
	session string
	log     *eventlog.Builder
	branch  uint32
	script  *transcript
	prompt  int // tokens of the opening
	sampled int // tokens sampled so far
	nCalls  int
	seen    Episode
}

// run drives the episode to its end.
func (e *episode) run(ctx context.Context) ending {
	env, err := tool.Bounded(ctx, e.loop.cfg.ToolTimeout, func(context.Context) (tool.Env, error) {
		if e.task.NewEnv == nil {
			return nil, nil
		}
		return e.task.NewEnv(), nil
	})
	if err != nil {
		return failed(eventlog.Failed, "env", err)
	}
	if err := e.open(); err != nil {
		return failed(eventlog.Failed, "prompt", err)
	}
	for turn := 1; ; turn++ {
		gen, end := e.sample(ctx)
		if end != nil {
			return *end
		}
		parsed, err := e.record(gen)
		if err != nil {
			return failed(eventlog.Failed, "engine", err)
		}
		e.loop.counts.turns.Add(1)
		if gen.Finish == FinishLength {
			e.seen.Final = parsed.Text()
			return ending{eventlog.Truncated, "length: the turn reached its token limit"}
		}
		if parsed.Calls() == 0 {
			e.seen.Final = parsed.Text()
			return e.complete(turn, ending{status: eventlog.OK})
		}
		if turn > e.loop.cfg.MaxToolCallingIterations {
			return ending{eventlog.Truncated, "max_tool_calling_iterations"}
		}
		results := e.execute(ctx, env, parsed)
		if ctx.Err() != nil {
			return e.broken(ctx, "tool", context.Cause(ctx))
		}
		if end := e.answer(turn, results); end != nil {
			return *end
		}
	}
}

// open renders the opening and writes it to the log.
func (e *episode) open() error {
	opening := Opening(e.task)
	script, err := newTranscript(e.loop.chat, e.task.Tools, opening)
	if err != nil {
		return err
	}
	e.script, e.prompt = script, len(script.ids)
	span, err := e.log.AppendTokens(0, script.ids, nil, eventlog.Prompt, 0)
	if err != nil {
		return err
	}
	if e.task.System != "" || len(e.task.Tools) > 0 {
		specs, err := toolSpecs(e.task.Tools)
		if err != nil {
			return err
		}
		if err := e.append(eventlog.NewSystem(e.task.System, specs)); err != nil {
			return err
		}
	}
	return e.append(eventlog.NewObservation("env", e.task.User).In(0, span))
}

func toolSpecs(tools []tool.Spec) ([]any, error) {
	var specs []any
	for _, t := range tools {
		data, err := json.Marshal(t)
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", t.Name, err)
		}
		v, err := decodeJSON(data)
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", t.Name, err)
		}
		specs = append(specs, v)
	}
	return specs, nil
}

func decodeJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

func (e *episode) append(ev eventlog.Event) error {
	_, err := e.log.Append(ev)
	return err
}

// sample asks the engine for one turn; the ending is set when there is none.
func (e *episode) sample(ctx context.Context) (Generation, *ending) {
	l := e.loop
	have := len(e.script.ids)
	room := min(l.cfg.MaxCompletionLength-(have-e.prompt), l.engine.MaxLen()-have)
	if l.cfg.MaxTurnLength > 0 {
		room = min(room, l.cfg.MaxTurnLength)
	}
	if room < 1 {
		return Generation{}, &ending{eventlog.Truncated, "length: no room for another turn"}
	}
	turnCtx, cancel := context.WithTimeoutCause(ctx, l.cfg.TurnTimeout, deadline{"turn", l.cfg.TurnTimeout})
	defer cancel()
	gen, err := l.engine.Generate(turnCtx, GenerateRequest{
		Session:  e.session,
		Prompt:   e.script.ids,
		MaxNew:   room,
		Stop:     l.chat.Stop(),
		Sampling: l.cfg.sampling(e.req.Seed+uint64(e.branch)*0x9e3779b97f4a7c15, e.req.Greedy),
		Version:  e.req.Version, MinVersion: e.req.MinVersion,
	})
	if err == nil {
		err = e.check(gen)
	}
	if err != nil {
		end := e.broken(turnCtx, "engine", err)
		return Generation{}, &end
	}
	return gen, nil
}

// check refuses a generation whose columns do not fit together or whose tokens
// are older than the ticket allows.
func (e *episode) check(gen Generation) error {
	n := len(gen.IDs)
	switch {
	case n == 0:
		return errors.New("empty generation")
	case len(gen.Logprobs) != n:
		return fmt.Errorf("%d ids with %d logprobs", n, len(gen.Logprobs))
	case len(gen.Versions) == 0 || gen.Versions[len(gen.Versions)-1].End != n:
		return fmt.Errorf("version runs do not cover the %d tokens", n)
	}
	at := 0
	for _, r := range gen.Versions {
		switch {
		case r.End <= at:
			return errors.New("version runs are not ascending")
		case r.Version < e.req.MinVersion:
			return fmt.Errorf("%w: token %d is of version %d; the ticket needs at least %d", ErrVersion, at, r.Version, e.req.MinVersion)
		case e.req.Version != nil && r.Version != *e.req.Version:
			return fmt.Errorf("%w: token %d is of version %d; need exactly %d", ErrVersion, at, r.Version, *e.req.Version)
		}
		at = r.End
	}
	return nil
}

// broken tells a deadline from a failure.
func (e *episode) broken(ctx context.Context, boundary string, err error) ending {
	var d deadline
	if errors.As(err, &d) || errors.As(context.Cause(ctx), &d) {
		return ending{eventlog.TimedOut, d.Error()}
	}
	return failed(eventlog.Failed, boundary, strings.TrimPrefix(err.Error(), boundary+": "))
}

// record writes a turn to transcript and log: its tokens once, and one event
// for each part with the tokens that are its.
func (e *episode) record(gen Generation) (Parsed, error) {
	inThought := strings.HasSuffix(strings.TrimRight(e.script.text, " \r\n"), thinkOpen)
	first, at := int32(0), 0
	for i, r := range gen.Versions {
		span, err := e.log.AppendTokens(e.branch, gen.IDs[at:r.End], gen.Logprobs[at:r.End], eventlog.Policy, r.Version)
		if err != nil {
			return Parsed{}, err
		}
		if i == 0 {
			first = span.Start
		}
		at = r.End
	}
	e.sampled += len(gen.IDs)
	content := e.script.emitted(gen.IDs, gen.Finish == FinishStop)
	parsed := ParseTurn(content, inThought)
	ends := make([]int, len(parsed.Parts))
	for i, p := range parsed.Parts {
		ends[i] = p.End
	}
	events := e.partEvents(content, parsed, gen.Finish)
	bounds := tokenEnds(e.loop.chat, gen.IDs, ends)
	start := first
	for i, ev := range events {
		if ev == nil {
			continue // blank text: its tokens go to the next part
		}
		end := first + int32(len(gen.IDs))
		if anyLater(events[i+1:]) {
			end = first + int32(bounds[i])
		}
		if err := e.append(ev.In(e.branch, eventlog.Span{Start: start, End: end})); err != nil {
			return Parsed{}, err
		}
		start = end
	}
	return parsed, nil
}

func anyLater(events []*eventlog.Event) bool {
	for _, ev := range events {
		if ev != nil {
			return true
		}
	}
	return false
}

// partEvents makes the event of each part, nil for blank text beside others. It
// gives the calls their ids. A turn that was cut executes nothing, so its calls
// are only text.
func (e *episode) partEvents(content string, parsed Parsed, finish Finish) []*eventlog.Event {
	var events []*eventlog.Event
	only := true
	at := 0
	for i := range parsed.Parts {
		p := &parsed.Parts[i]
		raw := content[at:p.End]
		at = p.End
		var ev eventlog.Event
		switch {
		case p.Kind == PartReasoning:
			ev = eventlog.NewReasoning(p.Text)
		case p.Kind == PartText && p.Text == "":
			events = append(events, nil)
			continue
		case p.Kind == PartText:
			ev = eventlog.NewText(p.Text)
		case finish == FinishLength:
			ev = eventlog.NewText(raw)
			ev.Payload["truncated"] = true
		default:
			e.nCalls++
			p.Call.ID = CallID(e.nCalls)
			ev = callEvent(p)
		}
		only = false
		ev.End = e.loop.now()
		events = append(events, &ev)
	}
	if only { // nothing but blanks, or nothing at all
		ev := eventlog.NewText("")
		ev.End = e.loop.now()
		events = append(events[:0], &ev)
	}
	return events
}

func callEvent(p *Part) eventlog.Event {
	if p.Err != nil {
		ev := eventlog.NewToolCall(p.Call.ID, p.Call.Name, p.Text)
		ev.Payload["status"] = "malformed"
		return ev
	}
	args, err := decodeJSON(p.Call.Arguments)
	if err != nil { // ParseTurn compacted them, so they are JSON
		args = string(p.Call.Arguments)
	}
	return eventlog.NewToolCall(p.Call.ID, p.Call.Name, args)
}

// tokenEnds maps byte offsets in the decoded text of ids to token offsets: the
// number of tokens whose text begins before the offset. Offsets ascend.
func tokenEnds(chat Chat, ids []int32, offsets []int) []int {
	out := make([]int, len(offsets))
	at := 0
	for i, off := range offsets {
		at += sort.Search(len(ids)-at, func(k int) bool { return len(chat.Decode(ids[:at+k])) >= off })
		out[i] = at
	}
	return out
}

// toolResult is what became of one call.
type toolResult struct {
	call       tool.Call
	text       string
	err        error
	start, end time.Time
}

// execute runs the calls of a turn side by side and returns their results in
// call order. A malformed call is not run; its result says why.
func (e *episode) execute(ctx context.Context, env tool.Env, parsed Parsed) []toolResult {
	var results []toolResult
	var wg sync.WaitGroup
	cfg := e.loop.cfg
	parts := make([]Part, 0, len(parsed.Parts))
	for _, p := range parsed.Parts {
		if p.Kind == PartCall {
			parts = append(parts, p)
		}
	}
	results = make([]toolResult, len(parts))
	for i, p := range parts {
		r := &results[i]
		r.call, r.start = p.Call, e.loop.now()
		switch {
		case p.Err != nil:
			e.seen.Malformed++
			e.loop.counts.malformed.Add(1)
			r.err = fmt.Errorf("malformed tool call: %w", p.Err)
		case env == nil:
			r.err = errors.New("there are no tools here")
		case i >= cfg.MaxCallsPerTurn:
			r.err = fmt.Errorf("more than %d calls in one turn; this one was not executed", cfg.MaxCallsPerTurn)
		default:
			wg.Go(func() {
				r.text, r.err = tool.Bounded(ctx, cfg.ToolTimeout, func(ctx context.Context) (string, error) {
					return env.Call(ctx, r.call)
				})
				r.end = e.loop.now()
			})
			continue
		}
		r.end = r.start
	}
	wg.Wait()
	for i, p := range parts {
		r := &results[i]
		if p.Err == nil && i < cfg.MaxCallsPerTurn && env != nil {
			e.loop.counts.calls.Add(1)
			if r.err != nil {
				e.loop.counts.toolErrors.Add(1)
			}
			e.seen.Calls = append(e.seen.Calls, r.call)
			e.seen.Results = append(e.seen.Results, ResultText(r.text, r.err))
		}
	}
	return results
}

// answer appends the results to transcript and log. The ending is set when the
// episode is over.
func (e *episode) answer(turn int, results []toolResult) *ending {
	l := e.loop
	messages := make([]Message, len(results))
	for i, r := range results {
		text := clip(strings.ToValidUTF8(ResultText(r.text, r.err), "\uFFFD"), l.cfg.MaxToolResultLength)
		messages[i] = Message{Role: "tool", Name: r.call.Name, CallID: r.call.ID, Content: neutral(l.chat, text)}
	}
	spans, end := e.extend(messages)
	for i, r := range results {
		errText := ""
		if r.err != nil {
			errText = strings.ToValidUTF8(r.err.Error(), "\uFFFD")
		}
		ev := eventlog.NewToolResult(r.call.ID, messages[i].Content, errText)
		ev.Start, ev.End = r.start, r.end
		if spans != nil {
			ev = ev.In(e.branch, spans[i])
		}
		if err := e.append(ev); err != nil {
			end := failed(eventlog.Failed, "tool", err)
			return &end
		}
	}
	if end == nil && e.task.SingleTurn {
		end = &ending{status: eventlog.OK}
	}
	done := e.complete(turn, ending{})
	if end == nil && done.cause != "" {
		end = &done
	}
	return end
}

// complete marks the end of a turn and passes the ending on.
func (e *episode) complete(turn int, end ending) ending {
	if err := e.append(eventlog.NewTurnComplete(turn)); err != nil {
		return failed(eventlog.Failed, "rollout", err)
	}
	return end
}

// extend adds the tool messages to the sequence, forking where the template
// rewrites history, and returns the span of each. Without room for them, or
// when the episode ends here anyway, they get no tokens.
func (e *episode) extend(messages []Message) ([]eventlog.Span, *ending) {
	l := e.loop
	if e.task.SingleTurn {
		return nil, nil
	}
	d, err := e.script.extend(messages)
	if err != nil {
		end := failed(eventlog.Failed, "prompt", err)
		return nil, &end
	}
	total := len(d.ids)
	if !d.forked {
		total += len(e.script.ids)
	}
	if total >= l.engine.MaxLen() || total-e.prompt >= l.cfg.MaxCompletionLength {
		return nil, &ending{eventlog.Truncated, "length: the tool results leave no room for another turn"}
	}
	fresh := d.ids
	if d.forked {
		l.counts.forks.Add(1)
		fresh = d.ids[d.shared:]
		if e.branch, err = e.log.Fork(e.branch, int32(d.shared)); err != nil {
			end := failed(eventlog.Failed, "prompt", err)
			return nil, &end
		}
	}
	span, err := e.log.AppendTokens(e.branch, fresh, nil, eventlog.Environment, 0)
	if err != nil {
		end := failed(eventlog.Failed, "prompt", err)
		return nil, &end
	}
	e.script.apply(d, messages)
	return splitResults(l.chat, d, fresh, span, messages), nil
}

// splitResults gives each message its part of the appended tokens: up to the
// end of its content, the last one to the end of all.
func splitResults(chat Chat, d delta, fresh []int32, span eventlog.Span, messages []Message) []eventlog.Span {
	text, skip := d.text, 0
	if d.forked {
		skip = len(chat.Decode(d.ids[:d.shared]))
	}
	ends := make([]int, len(messages))
	limit := len(text)
	for i := len(messages) - 1; i >= 0; i-- {
		at := strings.LastIndex(text[:limit], messages[i].Content)
		if at < 0 {
			at = limit
		} else {
			ends[i] = at + len(messages[i].Content)
			limit = at
			continue
		}
		ends[i] = limit
	}
	for i := range ends {
		ends[i] = max(0, ends[i]-skip)
	}
	bounds := tokenEnds(chat, fresh, ends)
	spans := make([]eventlog.Span, len(messages))
	start := span.Start
	for i := range spans {
		end := span.Start + int32(bounds[i])
		if i == len(spans)-1 {
			end = span.End
		}
		spans[i] = eventlog.Span{Start: start, End: end}
		start = end
	}
	return spans
}

// clip cuts a text to a number of bytes at a character boundary, with a note.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	cut := strings.ToValidUTF8(text[:limit], "")
	return fmt.Sprintf("%s… [%d bytes cut]", cut, len(text)-len(cut))
}
