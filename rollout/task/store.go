package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/reward"
	"github.com/skein-rl/skein/rollout"
)

var storeOptions = []string{"seed"}

// storeVersion changes whenever an index would become another task.
const storeVersion = "store/1"

// Store is the embedded model's multi-turn tool task: a shop whose prices and
// stock are private to each task. A question such as "Cost of 3 pens and 2
// cups?" takes two look-ups, one calculation and an answer:
//
//	<tool_call>{"name":"price","arguments":{"item":"pens"}}</tool_call><tool_call>{"name":"price","arguments":{"item":"cups"}}</tool_call>
//	<tool_call>{"name":"calc","arguments":{"expr":"3*17+2*45"}}</tool_call>
//	141
//
// Wording is short and varies little, prices have two digits, and no step needs
// arithmetic in the head, so that a model of a million parameters can learn it.
//
// The score is 1 when the final text states exactly the true number and the
// tools gave it: every needed look-up was made and a calculation came to it.
// Otherwise it is 0.1 times the share of needed look-ups made, plus 0.2 when a
// calculation came to the truth: at most 0.3, whatever the final text says.
//
// What is asked (kind, items, quantities) decides by its hash whether a task is
// for training or held out, so the two never share a question.
type Store struct {
	seed uint64
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
	return NewStore(seed), nil
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
func (s *Store) Train(i uint64) (rollout.Task, error) { return s.problem("train", i).task() }

// Heldout implements rollout.Source.
func (s *Store) Heldout(i uint64) (rollout.Task, error) { return s.problem("heldout", i).task() }

const storeSystem = "You run a shop. Look up, calculate, then answer with the number."

// storeItems are the goods, all plural so that a question's word is the
// argument.
var storeItems = []string{"pens", "cups", "books", "lamps", "balls", "hats", "bags", "keys", "boxes", "fans", "mugs", "maps"}

type storeKind int

const (
	costOfTwo storeKind = iota
	costOfOne
	stockDifference
)

// storeProblem is one drawn question with the shop behind it.
type storeProblem struct {
	id      string
	kind    storeKind
	items   []string // one or two, different
	counts  []int    // of each item; none for stockDifference
	wording int
	price   map[string]int
	stock   map[string]int
}

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

func drawStore(rng *rand.Rand) storeProblem {
	p := storeProblem{price: map[string]int{}, stock: map[string]int{}, wording: rng.IntN(2)}
	for _, it := range storeItems {
		p.price[it] = 10 + rng.IntN(90)
		p.stock[it] = 10 + rng.IntN(90)
	}
	order := rng.Perm(len(storeItems))
	x, y := storeItems[order[0]], storeItems[order[1]]
	switch n := rng.IntN(5); {
	case n < 3:
		p.kind, p.items, p.counts = costOfTwo, []string{x, y}, []int{2 + rng.IntN(8), 2 + rng.IntN(8)}
	case n < 4:
		p.kind, p.items, p.counts = costOfOne, []string{x}, []int{2 + rng.IntN(8)}
	default:
		p.kind, p.items = stockDifference, []string{x, y}
		for p.stock[x] <= p.stock[y] {
			p.stock[x], p.stock[y] = 10+rng.IntN(90), 10+rng.IntN(90)
		}
	}
	return p
}

// content is what is asked, whatever the wording and the numbers behind it.
func (p storeProblem) content() string { return fmt.Sprint(p.kind, p.items, p.counts) }

// heldout puts one question in five into the held-out split.
func (p storeProblem) heldout() bool {
	return rngOf(storeVersion, "split", p.content()).IntN(5) == 0
}

func (p storeProblem) question() string {
	switch p.kind {
	case costOfTwo:
		return fmt.Sprintf([]string{"Cost of %d %s and %d %s?", "What do %d %s and %d %s cost?"}[p.wording],
			p.counts[0], p.items[0], p.counts[1], p.items[1])
	case costOfOne:
		return fmt.Sprintf([]string{"Cost of %d %s?", "What do %d %s cost?"}[p.wording], p.counts[0], p.items[0])
	default:
		return fmt.Sprintf([]string{"How many more %s than %s in stock?", "Stock of %s minus stock of %s?"}[p.wording],
			p.items[0], p.items[1])
	}
}

func (p storeProblem) lookup() string {
	if p.kind == stockDifference {
		return "stock"
	}
	return "price"
}

// expr is the calculation over looked-up values, one per item.
func (p storeProblem) expr(values []int) string {
	switch p.kind {
	case costOfTwo:
		return fmt.Sprintf("%d*%d+%d*%d", p.counts[0], values[0], p.counts[1], values[1])
	case costOfOne:
		return fmt.Sprintf("%d*%d", p.counts[0], values[0])
	default:
		return fmt.Sprintf("%d-%d", values[0], values[1])
	}
}

func (p storeProblem) values() []int {
	out := make([]int, len(p.items))
	for i, it := range p.items {
		out[i] = p.price[it]
		if p.kind == stockDifference {
			out[i] = p.stock[it]
		}
	}
	return out
}

func (p storeProblem) truth() string {
	v, err := tool.Evaluate(p.expr(p.values()))
	if err != nil {
		panic(err) // sums of small products
	}
	return tool.FormatNumber(v)
}

func lookupSpec(name, description string) tool.Spec {
	return tool.Spec{Name: name, Description: description, Parameters: json.RawMessage(
		`{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}`)}
}

// env makes the shop's tools over the problem's private numbers.
func (p storeProblem) env() (*tool.Registry, error) {
	find := func(shelf map[string]int) tool.Func {
		return func(_ context.Context, args json.RawMessage) (string, error) {
			var in struct {
				Item string `json:"item"`
			}
			if err := json.Unmarshal(args, &in); err != nil {
				return "", err
			}
			n, ok := shelf[in.Item]
			if !ok {
				return "", errors.New("no such item")
			}
			return strconv.Itoa(n), nil
		}
	}
	return tool.NewRegistry(
		tool.Tool{Spec: lookupSpec("price", "price of one"), Func: find(p.price)},
		tool.Tool{Spec: lookupSpec("stock", "number in stock"), Func: find(p.stock)},
		tool.Calculator("calc"),
	)
}

func (p storeProblem) task() (rollout.Task, error) {
	reg, err := p.env()
	if err != nil {
		return rollout.Task{}, err
	}
	return rollout.Task{
		Source: "store", ID: p.id, System: storeSystem, User: p.question(),
		Tools:  reg.Specs(),
		NewEnv: func() tool.Env { return reg }, // it has no state of its own
		Score:  p.score,
		Demo:   p.demo(cleanHabit),
	}, nil
}

func (p storeProblem) score(ep rollout.Episode) (float64, error) {
	truth := p.truth()
	made := map[string]bool{}
	calculated := false
	for i, c := range ep.Calls {
		var in struct {
			Item string `json:"item"`
		}
		switch c.Name {
		case p.lookup():
			if json.Unmarshal(c.Arguments, &in) == nil {
				made[in.Item] = true
			}
		case "calc":
			calculated = calculated || ep.Results[i] == truth
		}
	}
	found := 0
	for _, it := range p.items {
		if made[it] {
			found++
		}
	}
	want, _ := reward.ParseNumber(truth)
	got, ok := reward.OnlyNumber(ep.Final)
	if ok && got.Cmp(want) == 0 && calculated && found == len(p.items) && !ep.Truncated {
		return 1, nil
	}
	partial := 0.1 * float64(found) / float64(len(p.items))
	if calculated {
		partial += 0.2
	}
	return partial, nil
}
