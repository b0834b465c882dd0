package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/reward"
)

// Loop runs episodes: sample a turn, execute its calls, append their results,
// until the agent answers in text or a limit ends the episode. Safe for
// concurrent use; the episodes of a group run side by side on one engine.
type Loop struct {
	engine Engine
	chat   Chat
	cfg    LoopConfig
	now    func() time.Time
	counts loopCounters
	tools  toolTimes
	judges []Scorer
}

type loopCounters struct {
	rollouts, turns, calls, toolErrors, malformed, forks atomic.Uint64
}

// LoopStats counts what a Loop did since it was made.
type LoopStats struct {
	Rollouts       uint64
	Turns          uint64
	Calls          uint64 // executed
	ToolErrors     uint64 // executed calls whose result was an error
	MalformedCalls uint64 // calls that did not parse
	Forks          uint64 // times a template rewrote history
	// Tools are the times of executed calls by tool; of at most 64 names.
	Tools map[string]ToolTime
}

// NewLoop joins an engine with a model's text side. now is the clock; nil means
// time.Now.
func NewLoop(engine Engine, chat Chat, cfg LoopConfig, now func() time.Time) (*Loop, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if engine == nil || chat == nil {
		return nil, errors.New("rollout: NewLoop needs an engine and a chat")
	}
	if len(chat.Stop()) == 0 {
		return nil, errors.New("rollout: the chat has no stop token; every turn would run to its limit")
	}
	if now == nil {
		now = time.Now
	}
	return &Loop{engine: engine, chat: chat, cfg: cfg, now: now}, nil
}

// JudgeWith has scorers judge every episode beside its task; before the first Run.
func (l *Loop) JudgeWith(judges ...Scorer) { l.judges = judges }

// Stats returns the counters so far.
func (l *Loop) Stats() LoopStats {
	c := &l.counts
	return LoopStats{
		Rollouts: c.rollouts.Load(), Turns: c.turns.Load(), Calls: c.calls.Load(),
		ToolErrors: c.toolErrors.Load(), MalformedCalls: c.malformed.Load(), Forks: c.forks.Load(), Tools: l.tools.get(),
	}
}

// Request says which rollout to run.
type Request struct {
	// ID names the log; "" derives it from the content.
	ID string
	// Meta identifies the rollout; Source, Task, Status, Cause and Created are
	// filled in.
	Meta eventlog.Meta
	// Seed makes the rollout's draws; siblings need different ones.
	Seed uint64
	// Greedy samples at temperature 0, whatever the configuration says.
	Greedy bool
	// Version, when set, accepts tokens of exactly that policy version.
	Version *uint64
	// MinVersion accepts tokens of that policy version and newer ones only.
	MinVersion uint64
	// Deadline ends the rollout as timed out (the group's deadline); zero means
	// none besides the configured timeouts.
	Deadline time.Time
}

// Boundaries that a deadline belongs to, as causes of a context.
type deadline struct {
	boundary string
	limit    time.Duration
}

func (d deadline) Error() string {
	if d.limit == 0 {
		return d.boundary + ": deadline exceeded"
	}
	return fmt.Sprintf("%s: not finished within %v", d.boundary, d.limit)
}

func (d deadline) Unwrap() error { return context.DeadlineExceeded }

// Opening is the conversation a task begins with.
func Opening(t Task) []Message {
	var m []Message
	if t.System != "" {
		m = append(m, Message{Role: "system", Content: t.System})
	}
	return append(m, Message{Role: "user", Content: t.User})
}

// Run rolls out one episode and returns its log, whatever became of it: a
// failure is a status with its cause. An error is returned only when ctx itself
// ends (the worker drains; there is no log then) or when the log breaks an
// invariant of its own, which is a bug.
//
// A rollout during which no token was sampled has failed (no_model_calls): it
// has nothing to train and is no zero either.
func (l *Loop) Run(ctx context.Context, t Task, req Request) (*eventlog.Log, error) {
	l.counts.rollouts.Add(1)
	meta := req.Meta
	meta.Source, meta.Task, meta.Created = t.Source, t.ID, l.now().UTC().Round(0)
	e := &episode{loop: l, task: t, req: req, log: eventlog.NewBuilder(meta), session: sessionOf(meta, req.ID)}
	e.log.SetID(req.ID)
	e.log.SetTier(eventlog.Full)
	defer l.engine.EndSession(e.session)

	runCtx, cancel := context.WithTimeoutCause(ctx, l.cfg.RolloutTimeout, deadline{"rollout", l.cfg.RolloutTimeout})
	defer cancel()
	if !req.Deadline.IsZero() {
		var cancelGroup context.CancelFunc
		runCtx, cancelGroup = context.WithDeadlineCause(runCtx, req.Deadline, deadline{boundary: "group"})
		defer cancelGroup()
	}
	end := e.run(runCtx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("rollout %s: %w", e.session, context.Cause(ctx))
	}
	switch {
	case e.sampled == 0:
		end = failed(eventlog.Failed, "no_model_calls", end.cause)
	case end.status == eventlog.OK || end.status == eventlog.Truncated:
		e.score(ctx, &end)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("rollout %s: %w", e.session, context.Cause(ctx))
		}
	}
	log, err := e.log.Finish(end.status, end.cause)
	if err != nil {
		return nil, fmt.Errorf("rollout %s: %w", e.session, err)
	}
	return log, nil
}

func sessionOf(m eventlog.Meta, id string) string {
	return fmt.Sprintf("%s/%s/%d/%d/%s", m.Run, m.Group, m.Member, m.Attempt, id)
}

// ending is how an episode ended.
type ending struct {
	status eventlog.Status
	cause  string
}

func failed(status eventlog.Status, boundary string, why any) ending {
	cause := boundary
	if s := fmt.Sprint(why); s != "" {
		cause += ": " + s
	}
	return ending{status, strings.ToValidUTF8(cause, "\uFFFD")}
}

// score judges the episode: the task, then the loop's scorers, whose scores stand
// beside the task's as components. The reward's value is the task's score; without
// one, the sum of the others. A reward that breaks makes the rollout failed and
// unscored, never zero.
func (e *episode) score(ctx context.Context, end *ending) {
	if e.task.Score == nil && len(e.loop.judges) == 0 {
		return
	}
	e.seen.Truncated = end.status == eventlog.Truncated
	e.seen.Messages = e.script.conversation()
	value := 0.0
	components := map[string]any{}
	if e.task.Score != nil {
		seen := e.seen // a judge that is given up may still look at it
		s := judge(ctx, e.loop.cfg.ToolTimeout, func(context.Context) (float64, error) { return e.task.Score(seen) })
		if !s.Scored {
			*end = failed(eventlog.Failed, "reward", s.Cause)
			return
		}
		value, components[TaskComponent] = s.Value, s.Value
	}
	for _, j := range e.loop.judges {
		s := judge(ctx, j.Timeout(), func(ctx context.Context) (float64, error) { return j.Score(ctx, e.task, e.seen) })
		if !s.Scored {
			*end = failed(eventlog.Failed, "reward", j.Name()+": "+s.Cause)
			return
		}
		components[j.Name()] = s.Value
		if e.task.Score == nil {
			value += s.Value
		}
	}
	ev := eventlog.NewReward(eventlog.EpisodeScope, value)
	if len(e.loop.judges) > 0 {
		ev.Payload["components"] = components
	}
	if err := e.append(ev); err != nil {
		*end = failed(eventlog.Failed, "reward", err)
	}
}

// judge runs one judgement within a limit.
func judge(ctx context.Context, limit time.Duration, score func(context.Context) (float64, error)) reward.Score {
	return reward.Guard(func() (float64, error) { return tool.Bounded(ctx, limit, score) })
}

// CallID names the nth call of an episode, from 1: nine letters and digits, as
// the strictest chat templates demand.
func CallID(n int) string { return fmt.Sprintf("call%05d", n%100000) }

// ResultText is what the model reads as the result of a call.
func ResultText(output string, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return output
}
