package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"

	"github.com/skein-rl/skein/agent/tool"
)

// shopArgs are the arguments of every tool but calc. Only sell has a count.
type shopArgs struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// soldResult is sell's answer when the sale was made. Whatever else it answers
// is an error, and nothing was sold.
const soldResult = "ok"

// shop is one rollout's private state. Calls may overlap: one that timed out
// can still run beside the next.
type shop struct {
	price map[string]int // never changes

	mu    sync.Mutex
	stock map[string]int
}

// openShop makes the tools over a shop of its own with this stock.
func openShop(price, stock map[string]int) (*tool.Registry, error) {
	s := &shop{price: price, stock: maps.Clone(stock)}
	const item = `{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}`
	const sale = `{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer","minimum":1}},"required":["item","count"]}`
	return tool.NewRegistry(
		s.tool("price", "price of one", item, func(in shopArgs) (string, error) { return strconv.Itoa(s.price[in.Item]), nil }),
		s.tool("stock", "number in stock", item, func(in shopArgs) (string, error) { return strconv.Itoa(s.stock[in.Item]), nil }),
		s.tool("sell", "take from stock", sale, s.sell),
		tool.Calculator("calc"),
	)
}

// tool wraps f: it runs alone, for an item the shop has, and not at all once its
// caller has given up, so that a call reported as timed out changes nothing.
func (s *shop) tool(name, description, parameters string, f func(shopArgs) (string, error)) tool.Tool {
	return tool.Tool{
		Spec: tool.Spec{Name: name, Description: description, Parameters: json.RawMessage(parameters)},
		Func: func(ctx context.Context, args json.RawMessage) (string, error) {
			var in shopArgs
			if err := json.Unmarshal(args, &in); err != nil {
				return "", err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			if _, ok := s.price[in.Item]; !ok {
				return "", errors.New("no such item")
			}
			return f(in)
		},
	}
}

func (s *shop) sell(in shopArgs) (string, error) {
	if have := s.stock[in.Item]; in.Count > have {
		return "", fmt.Errorf("only %d in stock", have)
	}
	s.stock[in.Item] -= in.Count
	return soldResult, nil
}
