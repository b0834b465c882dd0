package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/skein-rl/skein/bench"
)

// forms are a job on both backends; bf16 adds XLA's.
func forms(j job, bf16 bool) []job {
	j.Backend, j.Dtype = "go", "f32"
	out := []job{j}
	j.Backend = "xla:cpu"
	out = append(out, j)
	if bf16 {
		j.Dtype = "bf16"
		out[1] = j
	}
	return out
}

// updates: one forward and backward pass of a group, in CPU-seconds.
func updates(ctx context.Context, o options) error {
	log, err := bench.Open(o.results, "learner")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		size   string
		groups []group
		bf16   bool
	}{
		{"300+40-f32", alike(300, 8, 40), false},
		{"300+40-bf16", alike(300, 8, 40), true},
		{"256+256-bf16", alike(256, 8, 256), true},
		{"unlike", unlike(), false},
	} {
		j := job{Kind: "update", Steps: 1, Groups: c.groups}
		peer := j
		peer.Backend, peer.Dtype = "torch", "f32"
		if c.bf16 {
			peer.Dtype = "bf16"
		}
		mine, other, err := duel(ctx, o, forms(j, c.bf16), peer)
		if err != nil {
			return err
		}
		if err := add(log, o.runs, "grpo_update", c.size, "torch", mine, other, cpu, "CPU-s", map[string]any{"lora": "r=16 q,k,v,o", "threads": o.threads}); err != nil {
			return err
		}
		for _, r := range mine {
			if !strings.HasPrefix(r.Backend, "xla") {
				continue
			}
			row := bench.Row{Bench: "train_compile", Size: c.size, Ours: max(.001, r.First-r.Wall), Peer: "one step", PeerVersion: r.Backend, Theirs: r.Wall, Unit: "s", Runs: o.runs,
				Detail: map[string]any{"backend": r.Backend, "first_s": round(r.First)}}
			if err := log.Add(row, bench.Lower); err != nil {
				return err
			}
		}
	}
	return nil
}

// grpoSteps: a whole step, sampling included.
func grpoSteps(ctx context.Context, o options) error {
	log, err := bench.Open(o.results, "learner")
	if err != nil {
		return err
	}
	j := job{Kind: "step", Steps: 1, Gens: 8, New: 32}
	for a := 1; a <= 4; a++ {
		for b := 1; b <= 2; b++ {
			j.Prompts = append(j.Prompts, fmt.Sprintf("What is %d + %d? Reply with one digit only.\t%d", a, b, a+b))
		}
	}
	peer := j
	peer.Backend, peer.Dtype = "trl", "bf16"
	mine, other, err := duel(ctx, o, forms(j, true), peer)
	if err != nil {
		return err
	}
	return add(log, o.runs, "grpo_step", "8x8x32", "trl", mine, other, wall, "s", map[string]any{"lora": "r=16 all linear", "threads": o.threads})
}

// rowSteps: a step of sft or dpo on 8 rows of at most 128 tokens.
func rowSteps(kind string) func(context.Context, options) error {
	return func(ctx context.Context, o options) error {
		log, err := bench.Open(o.results, "learner")
		if err != nil {
			return err
		}
		j := job{Kind: kind, Steps: 1, Batch: 8, MaxLen: 128}
		j.Rows = rows(kind, j.Batch*(j.Steps+1), 128)
		peer := j
		peer.Backend, peer.Dtype = "trl", "bf16"
		mine, other, err := duel(ctx, o, forms(j, true), peer)
		if err != nil {
			return err
		}
		return add(log, o.runs, kind, "8x128", "trl", mine, other, wall, "s", map[string]any{"lora": "r=16 all linear", "threads": o.threads})
	}
}

// growth tells how an update's cost grows with completion length, group size,
// prompt length and number of groups: each row's peer is our own smallest size,
// times the growth, so that 1 is linear. The best of o.runs steps of one process.
func growth(ctx context.Context, o options) error {
	log, err := bench.Open(o.results, "learner")
	if err != nil {
		return err
	}
	groups := func(n int) (out []group) {
		for range n {
			out = append(out, alike(128, 4, 32)...)
		}
		return out
	}
	for _, f := range forms(job{Kind: "update", Steps: o.runs}, true) {
		for _, x := range []struct {
			name  string
			size  func(n int) []group
			sizes []int
		}{
			{"completion", func(n int) []group { return alike(128, 4, n) }, []int{64, 256, 1024}},
			{"group", func(n int) []group { return alike(300, n, 40) }, []int{2, 8, 16}},
			{"prompt", func(n int) []group { return alike(n, 4, 32) }, []int{128, 512, 1024}},
			{"groups", groups, []int{1, 4, 16}},
		} {
			var base result
			f := f
			for i, n := range x.sizes {
				f.Groups = x.size(n)
				if x.name == "groups" { // micro-batches of one group, as training.token_budget cuts them
					f.Budget = 256
				}
				best, err := ours(ctx, o, f)
				if err != nil {
					return err
				}
				say("growth %s %d: %s %.2f CPU-s, %.0f MB, compile %.1f s", x.name, n, best.Backend, best.CPU, best.RSS, best.First-best.Wall)
				if i == 0 {
					base = best
				}
				row := bench.Row{Bench: "grow_" + x.name, Size: fmt.Sprintf("%d-%s", n, f.Backend), Ours: best.CPU, Peer: "linear", PeerVersion: fmt.Sprintf("%d", x.sizes[0]),
					Theirs: base.CPU * float64(n) / float64(x.sizes[0]), Unit: "CPU-s", Runs: o.runs,
					Detail: map[string]any{"backend": best.Backend, "rss_mb": round(best.RSS), "first_s": round(best.First), "compile_s": round(max(0, best.First-best.Wall)), "tokens": best.Tokens}}
				if err := log.Add(row, bench.Lower); err != nil {
					return err
				}
				if x.name != "groups" {
					continue
				}
				row.Bench, row.Ours, row.Peer, row.Theirs, row.Unit = "grow_groups_rss", best.RSS, "flat", base.RSS, "MB"
				if err := log.Add(row, bench.Lower); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
