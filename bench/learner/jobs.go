package main

import (
	"math/rand/v2"

	"github.com/skein-rl/skein/model"
)

// job is one measurement, ours or a peer's, made in a process of its own so that
// its peak memory is its own.
type job struct {
	Kind    string `json:"kind"`    // update, step, sft, dpo
	Backend string `json:"backend"` // ours: go, xla:cpu; a peer's: its name
	Dtype   string `json:"dtype"`   // f32 or bf16
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	Steps   int    `json:"steps"` // measured, after one that is not

	// update: sequences, and how they share prompts, in passes of so many tokens (0 =
	// all at once); or trajectories instead.
	Groups []group `json:"groups,omitempty"`
	Budget int     `json:"budget,omitempty"`
	Forest *forest `json:"forest,omitempty"`
	// sft, dpo: rows of text, Batch a step; MaxLen tokens a row.
	Rows   []row `json:"rows,omitempty"`
	Batch  int   `json:"batch,omitempty"`
	MaxLen int   `json:"max_len,omitempty"`
	// step: prompts, generations of each, new tokens.
	Prompts []string `json:"prompts,omitempty"`
	Gens    int      `json:"gens,omitempty"`
	New     int      `json:"new,omitempty"`
}

// group is a prompt of so many tokens and its completions' lengths.
type group struct {
	Prompt      int   `json:"prompt"`
	Completions []int `json:"completions"`
}

// row is a demonstration (Chosen) or a pair.
type row struct {
	Prompt   string `json:"prompt"`
	Chosen   string `json:"chosen"`
	Rejected string `json:"rejected,omitempty"`
}

// result is what a job measured: the best of its steps.
type result struct {
	Wall    float64            `json:"wall"`  // seconds of the fastest step
	CPU     float64            `json:"cpu"`   // CPU-seconds of the cheapest
	First   float64            `json:"first"` // wall seconds of the first step, compilation included
	RSS     float64            `json:"rss"`   // peak MB, set by the parent
	Tokens  float64            `json:"tokens"`
	Version string             `json:"version"`
	Detail  map[string]float64 `json:"detail,omitempty"`
	Backend string             `json:"-"`
}

// take keeps the best of a job's steps.
func (r *result) take(wall, cpu float64) {
	if r.Wall == 0 || wall < r.Wall {
		r.Wall = wall
	}
	if r.CPU == 0 || cpu < r.CPU {
		r.CPU = cpu
	}
}

var qkvo = model.LoRAConfig{Rank: 16, Alpha: 32, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}}

var allLinear = model.LoRAConfig{Rank: 16, Alpha: 32, Targets: model.Projections}

// alike is one group of n completions.
func alike(prompt, n, completion int) []group {
	g := group{Prompt: prompt}
	for range n {
		g.Completions = append(g.Completions, completion)
	}
	return []group{g}
}

// unlike is 8 sequences of their own, 60 to 400 tokens of prompt and 16 to 112 of
// completion.
func unlike() (out []group) {
	for i := range 8 {
		out = append(out, group{60 + 340*i/7, []int{16 + 96*(i*5%8)/7}})
	}
	return out
}

// tokens makes a job's sequences, every completion token trained.
func (j job) tokens(vocab int) (groups []model.PrefixGroup) {
	rng := rand.New(rand.NewPCG(1, 1))
	draw := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(rng.IntN(vocab))
		}
		return out
	}
	for _, g := range j.Groups {
		p := model.PrefixGroup{Prompt: draw(g.Prompt)}
		for _, n := range g.Completions {
			s := model.Sequence{Tokens: draw(n), Train: make([]bool, n)}
			for i := range s.Train {
				s.Train[i] = true
			}
			p.Members = append(p.Members, s)
		}
		groups = append(groups, p)
	}
	return groups
}

// words are what rows are written with.
var words = []string{"the", "cat", "sat", "on", "a", "mat", "and", "then", "ran", "to", "see", "what", "was", "in", "big", "red", "box", "near", "an", "old", "tree"}

// rows of a prompt of 8 words and answers of n.
func rows(kind string, count, n int) (out []row) {
	rng := rand.New(rand.NewPCG(2, 1))
	text := func(n int) string {
		s := ""
		for range n {
			s += " " + words[rng.IntN(len(words))]
		}
		return s
	}
	for range count {
		r := row{Prompt: text(8)[1:], Chosen: text(n)}
		if kind == "dpo" {
			r.Rejected = text(n)
		}
		out = append(out, r)
	}
	return out
}
