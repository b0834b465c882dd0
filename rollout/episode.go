package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
	prompt  int       // tokens of the opening
	sampled int       // tokens sampled so far
	began   time.Time // of the turn
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
			e.seen.Final, e.seen.Truncated = parsed.Text(), true
			if broke := e.scoreTurn(ctx); broke != nil {
				return *broke
			}
			return ending{eventlog.Truncated, "length: the turn reached its token limit"}
		}
		if parsed.Calls() == 0 {
			e.seen.Final = parsed.Text()
			if broke := e.scoreTurn(ctx); broke != nil {
				return *broke
			}
			return e.complete(turn, ending{status: eventlog.OK})
		}
		if turn > e.loop.cfg.MaxToolCallingIterations {
			return ending{eventlog.Truncated, "max_tool_calling_iterations"}
		}
		results := e.execute(ctx, env, parsed)
		if ctx.Err() != nil {
			return e.broken(ctx, "tool", context.Cause(ctx))
		}
		if end := e.answer(ctx, turn, results); end != nil {
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
	e.began = l.now()
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
