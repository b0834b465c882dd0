package learner

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/advantage"
	"github.com/skein-rl/skein/model"
)

// Episode is one rollout in the loss: a row, whatever the number of branches
// its trained tokens come from. Slices are indexed by trained token [T].
type Episode struct {
	Group     string
	LogID     string
	Source    string // of its task
	Member    uint32
	Reward    float64
	Advantage float64 // of every token, weighed; for ppo 0, where each token has its own their mean
	Truncated bool
	Tokens    int       // trained tokens; 0 when masked as truncated
	Sampled   []float64 // the engine's log-probabilities
	Versions  []uint64  // policy version of each token
	seqs      []sequence
	traits    traits
	weight    float64 // of its source
	turns     turnLog
	turnOf    []int     // turn of each trained token
	tokenAdv  []float64 // of each trained token; nil = Advantage
}

// sequence is one branch of an episode as the trainer sees it.
type sequence struct {
	prompt []int32
	model.Sequence
	trained int
}

// Batch is one step's rows, in canonical order.
type Batch struct {
	Episodes []Episode
	// Excluded counts logs outside the batch by reason, and groups under
	// reasons that start with "group_".
	Excluded map[string]int
	// Groups are the groups with at least one episode; Constant those of them
	// whose scored rewards are all equal.
	Groups, Constant int
	RewardStd        float64 // mean over groups of their deviation
	RewardMean       float64 // mean over scored logs

	samples []advantage.Sample // of the episodes
}

// EmptyBatchError says that no token can be trained and why.
type EmptyBatchError struct{ Excluded map[string]int }

func (e *EmptyBatchError) Error() string {
	return "learner: nothing to train in this batch: " + histogram(e.Excluded)
}

// histogram writes counts as "a=1 b=2", sorted.
func histogram(counts map[string]int) string {
	if len(counts) == 0 {
		return "no groups"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s=%d", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}

// Tokens is the number of trained tokens.
func (b *Batch) Tokens() int {
	n := 0
	for _, e := range b.Episodes {
		n += e.Tokens
	}
	return n
}

// LogIDs lists the batch's logs in order.
func (b *Batch) LogIDs() []string {
	ids := make([]string, len(b.Episodes))
	for i, e := range b.Episodes {
		ids[i] = e.LogID
	}
	return ids
}

// Build makes the batch of a step at the learner's policy version. Every group
// must be admissible (Admit); the first that is not is the error, a
// *[GroupError]. Logs that failed, were never scored or have no sampled token
// are left out and counted. A batch without a trained token is an
// *[EmptyBatchError].
func Build(c Config, version uint64, groups []Group) (*Batch, error) {
	if _, refused := Admit(c, version, groups); len(refused) > 0 {
		errs := make([]error, len(refused))
		for i, r := range refused {
			errs[i] = r
		}
		return nil, errors.Join(errs...)
	}
	b := &Batch{Excluded: map[string]int{}}
	names := c.rewardNames()
	for _, g := range sorted(groups) {
		var eps []Episode
		var rows []advantage.Sample
		if missing := c.NumGenerations - len(g.Logs); missing > 0 {
			b.Excluded["missing"] += missing
		}
		for _, l := range g.Logs {
			e, rewards, reason := c.episode(l, names)
			if reason != "" {
				b.Excluded[reason]++
				continue
			}
			eps = append(eps, e)
			rows = append(rows, advantage.Sample{Group: g.ID, Rewards: rewards})
		}
		switch {
		case len(eps) == 0:
			b.Excluded["group_empty"]++
			continue
		case len(eps) == 1 && c.comparesGroups():
			b.Excluded["group_of_one"]++ // nothing to compare it with
			continue
		case c.ConstantGroups != KeepConstant && constant(rows) && (!c.TurnAdvantages || sameTurns(c, eps)):
			b.Excluded["group_constant"]++
			continue
		}
		b.Episodes = append(b.Episodes, eps...)
		b.samples = append(b.samples, rows...)
	}
	if err := b.advantages(c); err != nil {
		return nil, err
	}
	if b.Tokens() == 0 {
		return nil, &EmptyBatchError{b.Excluded}
	}
	return b, nil
}

// constant says whether all rows of a group have the same rewards.
func constant(rows []advantage.Sample) bool {
	for _, r := range rows[1:] {
		for k, v := range r.Rewards {
			if w := rows[0].Rewards[k]; v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
				return false
			}
		}
	}
	return true
}

// sameTurns says whether every turn of a group has the same return.
func sameTurns(c Config, eps []Episode) bool {
	first := math.NaN()
	for _, e := range eps {
		for _, g := range c.turns().Returns(advantage.TurnSample{Turns: e.turns.rewards}) {
			if math.IsNaN(first) {
				first = g
			}
			if g != first {
				return false
			}
		}
	}
	return true
}

func (b *Batch) advantages(c Config) error {
	res, err := advantage.Compute(c.advantageConfig(), b.samples)
	if err != nil {
		return err
	}
	adv := res.Advantages
	if c.Algorithm == RLOO && c.Beta == 0 { // else they wait for the KL
		loo, err := advantage.RLOO(c.rloo(), b.samples, nil)
		if err != nil {
			return err
		}
		adv = loo.Advantages
	}
	for i := range b.Episodes {
		b.Episodes[i].Reward = res.Rewards[i]
		b.Episodes[i].weight = c.sourceWeight(b.Episodes[i].Source)
		if c.Algorithm != PPO && c.Algorithm != Reinforce { // whose are of tokens
			b.Episodes[i].Advantage = adv[i] * b.Episodes[i].weight
		}
	}
	b.Groups = len(res.Groups)
	for _, id := range slices.Sorted(maps.Keys(res.Groups)) {
		g := res.Groups[id]
		if g.Constant {
			b.Constant++
		}
		if g.Scored > 1 {
			b.RewardStd += g.Std / float64(b.Groups)
		}
	}
	for _, r := range res.Rewards {
		b.RewardMean += r / float64(len(res.Rewards))
	}
	if c.TurnAdvantages && c.Algorithm == GRPO {
		return b.turnAdvantages(c)
	}
	return nil
}

// episode reads one log. reason is why it is excluded.
func (c Config) episode(l *eventlog.Log, names []string) (e Episode, rewards []float64, reason string) {
	if reason := excluded(l); reason != "" {
		return e, nil, reason
	}
	rewards, ok := rewardsOf(l, names)
	if !ok {
		return e, nil, "unscored"
	}
	rows, err := l.TrainRows(c.trainFrom(l))
	if err != nil {
		return e, nil, "no_model_calls"
	}
	e = Episode{Group: l.Meta.Group, LogID: l.ID, Source: l.Meta.Source, Member: l.Meta.Member, Truncated: l.Meta.Status == eventlog.Truncated, traits: traitsOf(l), turns: turnLogOf(l)}
	if e.Truncated && c.MaskTruncatedCompletions {
		return e, rewards, ""
	}
	for _, r := range rows {
		br := &l.Branches[r.Branch]
		if len(br.Runs) == 0 || br.Runs[0].Writer != eventlog.Prompt {
			return e, nil, "no_prompt"
		}
		start, last := int(br.Runs[0].End), 0
		versions, turns := br.Versions(), e.turns.tokens(l, r.Branch)
		for t, on := range r.Mask {
			if on {
				e.turnOf = append(e.turnOf, turns[t])
				e.Sampled = append(e.Sampled, float64(br.Logprobs[t]))
				e.Versions = append(e.Versions, versions[t])
				last = t
			}
		}
		// what follows the last trained token cannot change its log-probability
		e.seqs = append(e.seqs, sequence{
			prompt:   br.IDs[:start],
			Sequence: model.Sequence{Tokens: br.IDs[start : last+1], Train: r.Mask[start : last+1]},
			trained:  r.Trained,
		})
		e.Tokens += r.Trained
	}
	return e, rewards, ""
}

// rewardsOf reads the last episode reward: its value, or the components named.
// A component that is absent or null is NaN; ok is false when nothing scored
// the episode.
func rewardsOf(l *eventlog.Log, names []string) (rewards []float64, ok bool) {
	if len(names) == 0 {
		v, ok := l.EpisodeReward()
		return []float64{v}, ok
	}
	parts := components(l)
	for _, n := range names {
		v, is := toFloat(parts[n])
		ok = ok || is
		if !is {
			v = math.NaN()
		}
		rewards = append(rewards, v)
	}
	return rewards, ok
}

// components are those of the last episode reward.
func components(l *eventlog.Log) (parts map[string]any) {
	for _, e := range l.History() {
		if e.Kind == eventlog.Reward && e.Scope == eventlog.EpisodeScope {
			parts, _ = e.Payload["components"].(map[string]any)
		}
	}
	return parts
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case int64:
		return float64(v), true
	case interface{ Float64() (float64, error) }: // json.Number
		f, err := v.Float64()
		return f, err == nil
	}
	return 0, false
}
