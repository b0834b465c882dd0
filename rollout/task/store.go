package task

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/reward"
	"github.com/skein-rl/skein/rollout"
)

var storeOptions = []string{"seed", "turn_rewards"}

// storeVersion changes whenever an index would become another task.
const storeVersion = "store/2"

// Store is the embedded model's multi-turn tool task: a shop whose prices and
// stock are private to each rollout. Some questions are about the shop as it is:
// "Cost of 3 pens and 2 cups?" takes two look-ups, a calculation and an answer.
//
//	<tool_call>{"name":"price","arguments":{"item":"pens"}}</tool_call><tool_call>{"name":"price","arguments":{"item":"cups"}}</tool_call>
//	<tool_call>{"name":"calc","arguments":{"expr":"3*17+2*45"}}</tool_call>
//	141
//
// Others change it first and ask about the effect: "Sell 3 pens. How many are
// left?" takes a sale, a look-up after it and an answer.
//
//	<tool_call>{"name":"sell","arguments":{"item":"pens","count":3}}</tool_call>
//	<tool_call>{"name":"stock","arguments":{"item":"pens"}}</tool_call>
//	47
//
// Wording is short and varies little, prices and stock have two digits, and no
// step needs arithmetic in the head, so that a model of a million parameters can
// learn it.
//
// The score is 1 when the final text states exactly the true number, the tools
// gave it (every needed look-up showed the number that counts, and the
// calculation, where there is one, came to the truth), and just the asked sales
// were made. A sale nobody asked for scores 0: it cannot be undone. Otherwise the
// score is 0.1 times the share of needed sales and look-ups made, plus 0.2 when
// the last needed tool came to the truth: at most 0.3, whatever the final text
// says.
//
// What is asked (kind, items, quantities) decides by its hash whether a task is
// for training or held out, so the two never share a question.
//
// With TurnRewards every turn has a reward too: by how much it changed what the
// score would be if the rollout ended there, a wrong answer included, so that the
// turns of a rollout add up to its score.
type Store struct {
	seed uint64
	// TurnRewards judges turns; it does not change which tasks there are.
	TurnRewards bool
}

// NewStore returns the source for a seed.
func NewStore(seed uint64) *Store { return &Store{seed: seed} }

func openStore(o Options) (*Store, error) {
	var seed uint64
	if v, ok := o["seed"]; ok {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("seed=%q: give a whole number from 0", v)
		}
		seed = n
	}
	s := NewStore(seed)
	if v, ok := o["turn_rewards"]; ok {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return nil, fmt.Errorf("turn_rewards=%q: give true or false", v)
		}
		s.TurnRewards = on
	}
	return s, nil
}

// Name implements rollout.Source.
func (s *Store) Name() string { return "store" }

// Identity implements Identified.
func (s *Store) Identity() string {
	return "store:" + digest(storeVersion, strconv.FormatUint(s.seed, 10))
}

// HeldoutSize implements rollout.Source: there is no end.
func (s *Store) HeldoutSize() int { return 0 }

// Train implements rollout.Source.
func (s *Store) Train(i uint64) (rollout.Task, error) { return s.task(s.problem("train", i)) }

// Heldout implements rollout.Source.
func (s *Store) Heldout(i uint64) (rollout.Task, error) { return s.task(s.problem("heldout", i)) }

func (s *Store) task(p storeProblem) (rollout.Task, error) {
	t, err := p.task()
	if s.TurnRewards {
		t.TurnScore = p.turnScore
	}
	return t, err
}

// Difficulty implements Graded: the steps it takes, sales, look-ups and the
// calculation.
func (s *Store) Difficulty(i uint64) (float64, error) {
	p := s.problem("train", i)
	n := len(p.items) + len(p.sales())
	if p.calculates() {
		n++
	}
	return float64(n), nil
}

// turnScore is what the turn changed of the score.
func (p storeProblem) turnScore(ep rollout.Episode) (float64, bool, error) {
	now, err := p.score(ep)
	if err != nil {
		return 0, false, err
	}
	ep.Calls, ep.Results, ep.Final = ep.Calls[:ep.Before], ep.Results[:ep.Before], ""
	before, err := p.score(ep)
	return now - before, true, err
}

const storeSystem = "You run a shop. Sell if asked, look up, calculate, then answer with the number."

// problem draws task i of a split: candidates from a stream seeded by (seed,
// split, i), the first whose question belongs to the split.
func (s *Store) problem(split string, i uint64) storeProblem {
	rng := rngOf(storeVersion, strconv.FormatUint(s.seed, 10), split, strconv.FormatUint(i, 10))
	for {
		p := drawStore(rng)
		if p.heldout() == (split == "heldout") {
			p.id = fmt.Sprintf("%s/%d", split, i)
			return p
		}
	}
}

func rngOf(parts ...string) *rand.Rand {
	h := blake3.New(32, nil)
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return rand.New(rand.NewChaCha8([32]byte(h.Sum(nil))))
}

func (p storeProblem) task() (rollout.Task, error) {
	shop, err := openShop(p.price, p.stock)
	if err != nil {
		return rollout.Task{}, err
	}
	return rollout.Task{
		Source: "store", ID: p.id, System: storeSystem, User: p.question(),
		Tools: shop.Specs(),
		NewEnv: func() tool.Env {
			shop, err := openShop(p.price, p.stock)
			if err != nil {
				panic(err) // the same tools as above
			}
			return shop
		},
		InOrder: true,
		Score:   p.score,
		Demo:    p.demo(cleanHabit),
	}, nil
}

// score judges by what the tools answered: sales that were refused were not
// made, and a look-up counts when it showed the number after all asked sales.
func (p storeProblem) score(ep rollout.Episode) (float64, error) {
	truth := p.truth()
	need := map[string]string{}
	for i, v := range p.values() {
		need[p.items[i]] = strconv.Itoa(v)
	}
	sold, seen, came := map[string]int{}, map[string]bool{}, false
	for i, c := range ep.Calls {
		var in shopArgs
		result := ep.Results[i]
		if json.Unmarshal(c.Arguments, &in) != nil {
			continue
		}
		switch c.Name {
		case "sell":
			if result == soldResult {
				sold[in.Item] += in.Count
			}
		case p.lookup():
			if want, ok := need[in.Item]; ok && result == want {
				seen[in.Item] = true
				came = came || !p.calculates() && result == truth
			}
		case "calc":
			came = came || p.calculates() && result == truth
		}
	}
	asked := p.sales()
	for item, n := range sold {
		if n > asked[item] {
			return 0, nil
		}
	}
	done, steps := len(seen), len(p.items)+len(asked)
	for item, n := range asked {
		if sold[item] == n {
			done++
		}
	}
	want, _ := reward.ParseNumber(truth)
	got, ok := reward.OnlyNumber(ep.Final)
	if ok && got.Cmp(want) == 0 && came && done == steps && !ep.Truncated {
		return 1, nil
	}
	partial := 0.1 * float64(done) / float64(steps)
	if came {
		partial += 0.2
	}
	return partial, nil
}
