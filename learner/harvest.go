package learner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/data"
)

// HarvestConfig says which rows are formed from rollouts.
type HarvestConfig struct {
	// BestOf is how many of a group's rollouts become demonstrations, the
	// highest rewards first; 0 = all.
	BestOf int `yaml:"best_of" json:"best_of"`
	// MinReward is the least reward of a demonstration; for verdicts, of a
	// desirable rollout.
	MinReward float64 `yaml:"min_reward" json:"min_reward"`
	// Margin is by how much the rewards of a pair must differ at least; > 0.
	Margin float64 `yaml:"margin" json:"margin"`
	// MaxPairs of a group: best against worst, then second best against second
	// worst, and so on; 0 = all that Margin allows.
	MaxPairs int `yaml:"max_pairs" json:"max_pairs"`
	// MaskSuboptimal trains, of a pair's chosen trajectory, only turns without an
	// error, and of the rejected one only turns with an error (SPEC 11.6). A turn
	// has an error when one of its tool results does or a step or turn reward on
	// it is below 0; so has a rejected trajectory's last turn, which led to the
	// worse outcome.
	MaskSuboptimal bool `yaml:"mask_suboptimal_traces" json:"mask_suboptimal_traces"`
}

// DefaultHarvestConfig makes one pair a group of any difference, and calls
// rewards from 0.5 desirable.
func DefaultHarvestConfig() HarvestConfig {
	return HarvestConfig{BestOf: 1, MinReward: 0.5, Margin: 1e-6, MaxPairs: 1}
}

// Validate reports a problem with field, value and remedy.
func (c HarvestConfig) Validate() error {
	switch {
	case c.BestOf < 0 || c.MaxPairs < 0:
		return fmt.Errorf("best_of, max_pairs: %d and %d; use 0 for all", c.BestOf, c.MaxPairs)
	case !(c.Margin > 0) || math.IsInf(c.Margin, 0):
		return fmt.Errorf("margin: %v is not a finite number > 0: rewards that do not differ prefer nothing", c.Margin)
	case math.IsNaN(c.MinReward) || math.IsInf(c.MinReward, 0):
		return fmt.Errorf("min_reward: %v is not finite", c.MinReward)
	}
	return nil
}

// Harvest is rows formed from rollouts, and what was left out, counted by
// reason; reasons that start with "group_" count groups.
type Harvest struct {
	Rows     []data.Example
	Excluded map[string]int
}

// traced is a scored rollout of one trained branch.
type traced struct {
	log    *eventlog.Log
	branch int
	start  int // tokens of the prompt
	reward float64
}

// trace reads a log; reason is why it cannot be a row.
func trace(l *eventlog.Log) (t traced, reason string) {
	if reason := excluded(l); reason != "" {
		return t, reason
	}
	accepted := 0
	for i := range l.Branches {
		if l.Branches[i].Accepted {
			accepted++
		}
	}
	branch, ok := l.Accepted()
	switch {
	case !ok:
		return t, "no_model_calls"
	case accepted > 1:
		return t, "forked" // the template rewrote history: no one sequence holds it
	}
	b := &l.Branches[branch]
	if len(b.Runs) == 0 || b.Runs[0].Writer != eventlog.Prompt {
		return t, "no_prompt"
	}
	t = traced{log: l, branch: branch, start: int(b.Runs[0].End)}
	if t.reward, ok = l.EpisodeReward(); !ok || math.IsNaN(t.reward) || math.IsInf(t.reward, 0) {
		return t, unscored
	}
	return t, ""
}

const unscored = "unscored"

// expert says whether an expert wrote any of it.
func (t traced) expert() bool {
	return slices.ContainsFunc(t.log.Branches[t.branch].Runs, func(r eventlog.Run) bool { return r.Writer == eventlog.Expert })
}

// traces gives a group's rollouts in member order and counts the rest; demos says
// that what an expert wrote needs no reward.
func (h *Harvest) traces(g Group, demos bool) []traced {
	var out []traced
	for _, l := range g.Logs {
		t, reason := trace(l)
		if reason == unscored && demos && t.expert() {
			t.reward, reason = math.Inf(1), "" // a demonstration needs no reward
		}
		if reason != "" {
			h.Excluded[reason]++
			continue
		}
		out = append(out, t)
	}
	return out
}

// completion is the rollout after its prompt; keep says which turns are trained.
func (t traced) completion(turns []turn, keep func(turn) bool) data.Completion {
	b := &t.log.Branches[t.branch]
	c := data.Completion{Tokens: b.IDs[t.start:], Weights: make([]float32, len(b.IDs)-t.start)}
	for _, u := range turns {
		if keep(u) {
			for i := u.start; i < u.end; i++ {
				c.Weights[i-t.start] = 1
			}
		}
	}
	return c
}

func every(turn) bool { return true }

// Demonstrations are the best rollouts of each group, for sft: rejection
// sampling (RAFT, Dong et al. 2023, arXiv:2304.06767, algorithm 1). Tokens weigh
// what their events weigh (eventlog.TokenWeights), so that tool calls count
// twice; full-tier logs of a teacher, who needs no reward, are distilled by the
// same function.
func Demonstrations(c HarvestConfig, groups []Group) (Harvest, error) {
	return harvest(c, groups, true, func(h *Harvest, g Group, ts []traced) error {
		best := ranked(ts)
		if c.BestOf > 0 {
			best = best[:min(c.BestOf, len(best))]
		}
		for _, t := range best {
			if t.reward < c.MinReward {
				h.Excluded["below_min_reward"]++
				continue
			}
			w, err := t.log.TokenWeights(t.branch)
			if err != nil {
				return err
			}
			b := &t.log.Branches[t.branch]
			e := data.Example{Prompt: b.IDs[:t.start], Chosen: data.Completion{Tokens: b.IDs[t.start:], Weights: w[t.start:]}, Where: t.log.ID}
			h.add(e, e.Chosen)
		}
		return nil
	})
}

// Verdicts are all rollouts of each group, desirable from MinReward on, for kto
// and bco.
func Verdicts(c HarvestConfig, groups []Group) (Harvest, error) {
	return harvest(c, groups, false, func(h *Harvest, g Group, ts []traced) error {
		for _, t := range ts {
			e := data.Example{Prompt: t.log.Branches[t.branch].IDs[:t.start], Chosen: t.completion(turnsOf(t.log, t.branch), every), Label: t.reward >= c.MinReward, Where: t.log.ID}
			h.add(e, e.Chosen)
		}
		return nil
	})
}

// Pairs are whole trajectories of each group, the better against the worse, for
// dpo and reward models.
func Pairs(c HarvestConfig, groups []Group) (Harvest, error) {
	return harvest(c, groups, false, func(h *Harvest, g Group, ts []traced) error {
		order := ranked(ts)
		made := 0
		for i, j := 0, len(order)-1; i < j && (c.MaxPairs == 0 || made < c.MaxPairs); i, j = i+1, j-1 {
			if e, reason := c.pair(order[i], order[j]); reason != "" {
				h.Excluded[reason]++
			} else if h.add(e, e.Chosen, e.Rejected) {
				made++
			}
		}
		if made == 0 {
			h.Excluded["group_without_pair"]++
		}
		return nil
	})
}

func (c HarvestConfig) pair(w, l traced) (e data.Example, reason string) {
	good, bad := &w.log.Branches[w.branch], &l.log.Branches[l.branch]
	switch {
	case w.reward-l.reward < c.Margin:
		return e, "below_margin"
	case !slices.Equal(good.IDs[:w.start], bad.IDs[:l.start]):
		return e, "prompts_differ"
	case slices.Equal(good.IDs, bad.IDs):
		return e, "same_tokens"
	}
	e = data.Example{Prompt: good.IDs[:w.start], Margin: w.reward - l.reward, Where: w.log.ID + " > " + l.log.ID}
	chosen, rejected := every, every
	if c.MaskSuboptimal {
		chosen = func(u turn) bool { return !u.wrong }
		rejected = func(u turn) bool { return u.wrong || u.last }
	}
	e.Chosen = w.completion(turnsOf(w.log, w.branch), chosen)
	e.Rejected = l.completion(turnsOf(l.log, l.branch), rejected)
	return e, ""
}

// StepPairs are single steps, for dpo: wherever a log kept a rejected branch
// beside the accepted one (a retry, an expert's correction, a pruned thought),
// the turn that was taken against the one that was not, after the history that
// both share (SPEC 11.6). Logs need no reward.
func StepPairs(groups []Group) (Harvest, error) {
	h := Harvest{Excluded: map[string]int{}}
	for _, g := range sorted(groups) {
		for _, l := range g.Logs {
			if reason := excluded(l); reason != "" {
				h.Excluded[reason]++
				continue
			}
			a, ok := l.Accepted()
			if !ok {
				h.Excluded["no_model_calls"]++
				continue
			}
			for i := range l.Branches {
				if l.Branches[i].Accepted {
					continue
				}
				e, reason := stepPair(l, a, i)
				if reason != "" {
					h.Excluded[reason]++
					continue
				}
				h.add(e, e.Chosen, e.Rejected)
			}
		}
	}
	return h, nil
}

// stepPair pairs the turns of two branches where they part.
func stepPair(l *eventlog.Log, accepted, rejected int) (e data.Example, reason string) {
	a, r := &l.Branches[accepted], &l.Branches[rejected]
	n := 0
	for n < len(a.IDs) && n < len(r.IDs) && a.IDs[n] == r.IDs[n] {
		n++
	}
	find := func(b int) (turn, bool) {
		for _, u := range turnsOf(l, b) {
			if n < u.end {
				return u, u.start <= n
			}
		}
		return turn{}, false
	}
	x, ok := find(accepted)
	y, also := find(rejected)
	if !ok || !also || x.start != y.start || x.start == 0 {
		return e, "no_step_to_compare" // they part where the environment speaks, or one ends
	}
	return data.Example{
		Prompt: a.IDs[:x.start], Where: fmt.Sprintf("%s branch %d > %d", l.ID, accepted, rejected),
		Chosen: data.Completion{Tokens: a.IDs[x.start:x.end]}, Rejected: data.Completion{Tokens: r.IDs[y.start:y.end]},
	}, ""
}

// harvest applies form to every group, in the order of the task stream.
func harvest(c HarvestConfig, groups []Group, demos bool, form func(*Harvest, Group, []traced) error) (Harvest, error) {
	if err := c.Validate(); err != nil {
		return Harvest{}, fmt.Errorf("learner: harvest: %w", err)
	}
	h := Harvest{Excluded: map[string]int{}}
	for _, g := range sorted(groups) {
		if err := form(&h, g, h.traces(g, demos)); err != nil {
			return h, fmt.Errorf("learner: harvest: group %q: %w", g.ID, err)
		}
	}
	return h, nil
}

// add takes a row whose completions all have something to train.
func (h *Harvest) add(e data.Example, sides ...data.Completion) bool {
	for _, c := range sides {
		if c.Trained() == 0 {
			h.Excluded["all_masked"]++
			return false
		}
	}
	h.Rows = append(h.Rows, e)
	return true
}

// ranked sorts by reward, best first, keeping member order among equals.
func ranked(ts []traced) []traced {
	out := slices.Clone(ts)
	slices.SortStableFunc(out, func(a, b traced) int { return cmp.Compare(b.reward, a.reward) })
	return out
}
