package task

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/rollout"
)

// A model trained on flawless demonstrations of Store leaves reinforcement
// learning nothing to improve, and one trained on random mistakes is still
// right when it decodes greedily, because each mistake is rarer than the right
// step. So the mistakes are habits: about half of the questions have one,
// decided by what is asked, and a demonstration of such a question shows it with
// probability noiseRate. Above one half the habit becomes the likeliest step:
// the trained model is right on the other half, greedily too, and sampling
// still finds the right way on all of them.

type habit int

const (
	cleanHabit habit = iota
	stopEarly        // states the first looked-up number without calculating
	wrongTool        // asks for the stock instead of the price, or the reverse
	wrongItem        // sells and looks up the item listed next to the one asked for
	wrongExpr        // forgets the first quantity, or takes the difference the wrong way round
	forgetSale       // answers without selling
	lookFirst        // looks up before selling and answers with the old stock
	storeHabits
)

// habitOf says which mistake belongs to a question.
func (p storeProblem) habitOf() habit {
	first := p.items[0]
	shelf := first == "lamps" || first == "books"
	switch {
	case p.sells() && (p.counts[0] >= 8 || p.counts[0] == 2):
		return forgetSale
	case p.sells() && shelf:
		return lookFirst
	case p.counts != nil && p.counts[0] >= 8:
		return stopEarly
	case shelf:
		return wrongTool
	case first == "hats":
		return wrongItem
	case p.kind == costOfTwo && (p.counts[1] == 2 || p.counts[1] == 4):
		return wrongExpr
	case p.kind == stockDifference && (first == "keys" || first == "fans" || first == "mugs"):
		return wrongExpr
	}
	return cleanHabit
}

// demo is the assistant's side of an episode that shows a habit.
func (p storeProblem) demo(h habit) []rollout.Turn {
	items, looks := slices.Clone(p.items), make([]string, len(p.items))
	for i := range looks {
		looks[i] = p.lookup()
	}
	switch h {
	case wrongTool:
		looks[0] = map[string]string{"price": "stock", "stock": "price"}[looks[0]]
	case wrongItem:
		items[0] = storeItems[(slices.Index(storeItems, items[0])+1)%len(storeItems)]
	}
	stock := maps.Clone(p.stock)
	var sales, lookups rollout.Turn
	if p.sells() && h != forgetSale {
		for i, it := range items {
			sales.Calls = append(sales.Calls, shopCall("sell", it, p.counts[i]))
			if h != lookFirst {
				stock[it] -= p.counts[i]
			}
		}
	}
	shelf := map[string]map[string]int{"price": p.price, "stock": stock}
	values := make([]int, len(items))
	for i, it := range items {
		lookups.Calls = append(lookups.Calls, shopCall(looks[i], it, 0))
		values[i] = shelf[looks[i]][it]
	}
	turns := []rollout.Turn{lookups}
	switch {
	case sales.Calls == nil:
	case h == lookFirst:
		turns = []rollout.Turn{lookups, sales}
	default:
		turns = []rollout.Turn{sales, lookups}
	}
	if h == stopEarly || !p.calculates() {
		return append(turns, rollout.Turn{Text: strconv.Itoa(values[0])})
	}
	expr := p.expr(values)
	if h == wrongExpr {
		switch p.kind {
		case costOfTwo:
			expr = fmt.Sprintf("%d+%d*%d", values[0], p.counts[1], values[1])
		case stockDifference:
			expr = fmt.Sprintf("%d-%d", values[1], values[0])
		}
	}
	return append(turns,
		rollout.Turn{Calls: []tool.Call{{Name: "calc", Arguments: []byte(fmt.Sprintf(`{"expr":%q}`, expr))}}},
		rollout.Turn{Text: evaluated(expr)})
}

// shopCall writes a call; a count of 0 is left out.
func shopCall(name, item string, count int) tool.Call {
	args := fmt.Sprintf(`{"item":%q}`, item)
	if count > 0 {
		args = fmt.Sprintf(`{"item":%q,"count":%d}`, item, count)
	}
	return tool.Call{Name: name, Arguments: []byte(args)}
}

// DemoConversation writes out a demonstration of training task index, tool
// results included, as rollout.EncodeDemo takes it. noiseRate in [0,1] is the
// probability that a question with a bad habit shows it; 0 gives correct
// demonstrations only. The tools to render with it are those of the task.
func (s *Store) DemoConversation(index uint64, noiseRate float64, rng *rand.Rand) ([]rollout.Message, error) {
	if !(noiseRate >= 0 && noiseRate <= 1) {
		return nil, fmt.Errorf("task store: noiseRate is %v; give a probability in [0,1]", noiseRate)
	}
	p := s.problem("train", index)
	h := p.habitOf()
	if rng.Float64() >= noiseRate {
		h = cleanHabit
	}
	t, err := p.task()
	if err != nil {
		return nil, err
	}
	return Converse(context.Background(), t, p.demo(h), rollout.FormatCalls)
}

// Converse writes out a task's conversation with the given assistant turns,
// running their calls in a fresh environment. format writes calls into a turn's
// text, such as rollout.FormatCalls; nil leaves them to the chat's template.
func Converse(ctx context.Context, t rollout.Task, turns []rollout.Turn, format func([]tool.Call) string) ([]rollout.Message, error) {
	messages := rollout.Opening(t)
	env := t.NewEnv()
	n := 0
	for i, turn := range turns {
		if len(turn.Calls) == 0 {
			messages = append(messages, rollout.Message{Role: "assistant", Content: turn.Text})
			continue
		}
		if i == len(turns)-1 && !t.SingleTurn {
			return nil, fmt.Errorf("task %s %s: the demonstration ends with calls; end it with a text", t.Source, t.ID)
		}
		said := rollout.Message{Role: "assistant", Content: turn.Text}
		if format != nil {
			said.Content += format(turn.Calls)
		} else {
			said.Calls = slices.Clone(turn.Calls)
			for k := range said.Calls {
				said.Calls[k].ID = rollout.CallID(n + k + 1)
			}
		}
		messages = append(messages, said)
		if i == len(turns)-1 {
			break
		}
		for _, c := range turn.Calls {
			n++
			c.ID = rollout.CallID(n)
			out, err := env.Call(ctx, c)
			messages = append(messages, rollout.Message{
				Role: "tool", Name: c.Name, CallID: c.ID, Content: rollout.ResultText(out, err),
			})
		}
	}
	return messages, nil
}
