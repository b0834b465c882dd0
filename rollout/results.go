package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/reward"
)

// toolResult is what became of one call.
type toolResult struct {
	call       tool.Call
	text       string
	err        error
	start, end time.Time
}

// execute runs the calls of a turn side by side, or one after another where the
// task wants that, and returns their results in call order. A malformed call is
// not run; its result says why.
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
			run := func() {
				r.text, r.err = tool.Bounded(ctx, cfg.ToolTimeout, func(ctx context.Context) (string, error) {
					return env.Call(ctx, r.call)
				})
				r.end = e.loop.now()
			}
			if e.task.InOrder {
				run()
			} else {
				wg.Go(run)
			}
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
			e.loop.tools.add(r.call.Name, r.end.Sub(r.start), r.err != nil)
			e.seen.Calls = append(e.seen.Calls, r.call)
			e.seen.Results = append(e.seen.Results, ResultText(r.text, r.err))
		}
	}
	return results
}

// answer appends the results to transcript and log. The ending is set when the
// episode is over.
func (e *episode) answer(ctx context.Context, turn int, results []toolResult) *ending {
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
	if broke := e.scoreTurn(ctx); broke != nil {
		return broke
	}
	done := e.complete(turn, ending{})
	if end == nil && done.cause != "" {
		end = &done
	}
	return end
}

// scoreTurn has the task judge the turn that has just ended. A judge that breaks
// ends the rollout as failed.
func (e *episode) scoreTurn(ctx context.Context) *ending {
	if e.task.TurnScore == nil {
		return nil
	}
	type judged struct {
		value  float64
		scored bool
	}
	var out judged
	seen := e.seen // a judge that is given up may still look at it
	s := reward.Guard(func() (_ float64, err error) {
		out, err = tool.Bounded(ctx, e.loop.cfg.ToolTimeout, func(context.Context) (j judged, err error) {
			j.value, j.scored, err = e.task.TurnScore(seen)
			return j, err
		})
		return out.value, err
	})
	scored := out.scored
	e.seen.Before = len(e.seen.Calls)
	if s.Scored && !scored {
		return nil
	}
	if !s.Scored {
		end := e.broken(ctx, "reward", errors.New("turn: "+s.Cause))
		return &end
	}
	if err := e.append(eventlog.NewReward(eventlog.TurnScope, s.Value)); err != nil {
		end := failed(eventlog.Failed, "reward", err)
		return &end
	}
	return nil
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
	e.script.apply(d)
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
		ends[i] = limit
		if at := strings.LastIndex(text[:limit], messages[i].Content); at >= 0 {
			ends[i], limit = at+len(messages[i].Content), at
		}
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
