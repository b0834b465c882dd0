package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// forest is a set of tool trajectories: tasks under one system prompt, each rolled
// out by several members, each of whom goes back once, halfway, and goes on
// otherwise, both branches trained. Sizes are tokens.
type forest struct {
	Tasks, Members, Turns      int
	System, Task, Call, Result int
	Unshared                   bool // every sequence computed whole
}

// logs rolls it out with random tokens.
func (f forest) logs(vocab int) (groups []learner.Group, err error) {
	rng := rand.New(rand.NewPCG(4, 1))
	draw := func(n int) (ids []int32, logprobs []float32) {
		for range n {
			ids, logprobs = append(ids, int32(rng.IntN(vocab))), append(logprobs, -1)
		}
		return ids, logprobs
	}
	system, _ := draw(f.System)
	for t := range f.Tasks {
		task, _ := draw(f.Task)
		g := learner.Group{ID: groupID(0, t), Index: uint64(t)}
		for m := range f.Members {
			b := eventlog.NewBuilder(eventlog.Meta{Run: "bench", Group: g.ID, Member: uint32(m), GroupSize: uint32(f.Members),
				Table: "train", Source: "bench", Task: g.ID, Worker: "bench"})
			branch := uint32(0)
			say := func(n int, w eventlog.Writer, e func(eventlog.Span) eventlog.Event) {
				if err != nil {
					return
				}
				ids, logprobs := draw(n)
				if w == eventlog.Prompt {
					ids = slices.Concat(system, task)
				}
				if w != eventlog.Policy {
					logprobs = nil
				}
				var sp eventlog.Span
				if sp, err = b.AppendTokens(branch, ids, logprobs, w, 0); err == nil {
					_, err = b.Append(e(sp))
				}
			}
			said := func(sp eventlog.Span) eventlog.Event { return eventlog.NewText("call").In(branch, sp) }
			seen := func(sp eventlog.Span) eventlog.Event {
				return eventlog.NewObservation("env", "result").In(branch, sp)
			}
			say(0, eventlog.Prompt, seen)
			for turn := range f.Turns {
				say(f.Call, eventlog.Policy, said)
				say(f.Result, eventlog.Environment, seen)
				if turn == f.Turns/2-1 && err == nil { // the branch that is left goes on first
					for range f.Turns - f.Turns/2 {
						say(f.Call, eventlog.Policy, said)
						say(f.Result, eventlog.Environment, seen)
					}
					if err == nil {
						branch, err = b.Fork(0, int32(f.System+f.Task+(turn+1)*(f.Call+f.Result)))
					}
				}
			}
			if err == nil {
				_, err = b.Append(eventlog.NewReward(eventlog.EpisodeScope, float64(m*m)))
			}
			if err != nil {
				return nil, err
			}
			l, err := b.Finish(eventlog.OK, "")
			if err != nil {
				return nil, err
			}
			g.Logs = append(g.Logs, l)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// recorder keeps what a learner asks its trainer to compute.
type recorder struct {
	model.Trainer
	passes [][]model.PrefixGroup
}

func (r *recorder) Forward(ctx context.Context, groups []model.PrefixGroup, temperature float64) (model.Scores, error) {
	r.passes = append(r.passes, groups)
	return r.Trainer.Forward(ctx, groups, temperature)
}

// passes are the micro-batches a learner cuts the trajectories into.
func (f forest) passes(ctx context.Context, m *model.Model, tr model.Trainer, a *model.Adapter) ([][]model.PrefixGroup, error) {
	groups, err := f.logs(m.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	c := learner.DefaultConfig()
	c.NumGenerations, c.GroupsPerStep = f.Members, f.Tasks
	rec := &recorder{Trainer: tr}
	l, err := learner.New(c, learner.Identity{Run: "bench", Base: m.Digest, LoRA: a.LoRA}, rec, a.Params)
	if err != nil {
		return nil, err
	}
	if _, err := l.Step(ctx, groups); err != nil {
		return nil, err
	}
	if !f.Unshared {
		return rec.passes, nil
	}
	for i, p := range rec.passes {
		rec.passes[i] = nil
		for _, g := range p {
			rec.passes[i] = append(rec.passes[i], sequences(g)...)
		}
	}
	return rec.passes, nil
}

// sequences takes a tree apart: what several go through is trained in the first.
func sequences(g model.PrefixGroup) (out []model.PrefixGroup) {
	inner := map[int]bool{}
	for _, m := range g.Members {
		inner[m.Parent] = true
	}
	taken := make([]bool, len(g.Members))
	for i := range g.Members {
		if inner[i+1] {
			continue
		}
		var s model.Sequence
		for at := i + 1; at > 0; at = g.Members[at-1].Parent {
			m := g.Members[at-1]
			train := m.Train
			if taken[at-1] {
				train = make([]bool, len(m.Tokens))
			}
			taken[at-1] = true
			s.Tokens, s.Train = slices.Concat(m.Tokens, s.Tokens), slices.Concat(train, s.Train)
		}
		out = append(out, model.PrefixGroup{Prompt: g.Prompt, Members: []model.Sequence{s}})
	}
	return out
}

// tokensOf counts what a pass is given.
func tokensOf(groups []model.PrefixGroup) (computed, trained int) {
	for _, g := range groups {
		computed += len(g.Prompt)
		for _, m := range g.Members {
			computed += len(m.Tokens)
			for _, on := range m.Train {
				if on {
					trained++
				}
			}
		}
	}
	return computed, trained
}

// trees: an update on multi-turn trajectories with branches, against the same
// sequences computed one by one.
func trees(ctx context.Context, o options) error {
	log, err := bench.Open(o.results, "learner")
	if err != nil {
		return err
	}
	for _, j := range forms(job{Kind: "update", Steps: o.runs}, true) {
		j.Forest = &forest{Tasks: 2, Members: 3, Turns: 4, System: 160, Task: 40, Call: 24, Result: 32}
		shared, err := ours(ctx, o, j)
		if err != nil {
			return err
		}
		whole := *j.Forest
		whole.Unshared = true
		j.Forest = &whole
		apart, err := ours(ctx, o, j)
		if err != nil {
			return err
		}
		say("tree %s: %.2f CPU-s for %.0f tokens, one by one %.2f for %.0f", shared.Backend, shared.CPU, shared.Detail["computed"], apart.CPU, apart.Detail["computed"])
		row := bench.Row{Bench: "grpo_update", Size: "tree-" + j.Backend, Ours: shared.CPU, Peer: "unshared", PeerVersion: "skein", Theirs: apart.CPU, Unit: "CPU-s", Runs: o.runs,
			Detail: map[string]any{"backend": shared.Backend, "tokens": shared.Tokens, "computed_tokens": shared.Detail["computed"], "given_tokens": apart.Detail["computed"],
				"rss_mb": round(shared.RSS), "peer_rss_mb": round(apart.RSS), "s": round(shared.Wall), "peer_s": round(apart.Wall), "compile_s": round(max(0, shared.First-shared.Wall))}}
		if err := log.Add(row, bench.Lower); err != nil {
			return err
		}
	}
	return nil
}

// passes are the passes of an update job.
func (j job) passes(ctx context.Context, m *model.Model, tr model.Trainer, a *model.Adapter) ([][]model.PrefixGroup, error) {
	if j.Forest != nil {
		return j.Forest.passes(ctx, m, tr, a)
	}
	groups := j.tokens(m.Config.VocabSize)
	if j.Budget == 0 {
		return [][]model.PrefixGroup{groups}, nil
	}
	var out [][]model.PrefixGroup
	room := 0
	for _, g := range groups {
		n, _ := tokensOf([]model.PrefixGroup{g})
		if n > j.Budget {
			return nil, fmt.Errorf("a group of %d tokens is larger than the budget of %d", n, j.Budget)
		}
		if n > room {
			out, room = append(out, nil), j.Budget
		}
		out[len(out)-1] = append(out[len(out)-1], g)
		room -= n
	}
	return out, nil
}
