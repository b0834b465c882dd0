package gobackend

import (
	"errors"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// batch is prefix groups packed into rows without padding: each group's prompt,
// then its members. Only rows that some scored token depends on are present:
// a member ends before its last scored token, which is predicted, never read.
type batch struct {
	tokens []int32 // [N]
	pos    []int   // [N]
	groups []packedGroup
	rows   []int   // [S] the row that predicts each scored token
	target []int32 // [S]
}

// packedGroup locates one group: the prompt's rows, then the members' rows.
type packedGroup struct {
	row, prompt int
	members     []run
}

// run is consecutive rows.
type run struct{ row, n int }

// pack lays out groups and checks them against the model's sizes.
func pack(c model.Config, groups []model.PrefixGroup) (*batch, error) {
	b := &batch{}
	for g, group := range groups {
		if err := checkGroup(c, group); err != nil {
			return nil, fmt.Errorf("group %d: %w", g, err)
		}
		p := len(group.Prompt)
		first := len(b.tokens)
		scored := len(b.rows)
		pg := packedGroup{row: first, prompt: p}
		b.append(group.Prompt, 0)
		for _, m := range group.Members {
			r := run{row: len(b.tokens)}
			for i, train := range m.Train {
				if !train {
					continue
				}
				from := first + p - 1
				if i > 0 {
					from, r.n = r.row+i-1, i
				}
				b.rows, b.target = append(b.rows, from), append(b.target, m.Tokens[i])
			}
			b.append(m.Tokens[:r.n], p)
			pg.members = append(pg.members, r)
		}
		if len(b.rows) == scored { // nothing trained: the group costs nothing
			b.tokens, b.pos = b.tokens[:first], b.pos[:first]
			continue
		}
		b.groups = append(b.groups, pg)
	}
	return b, nil
}

func (b *batch) append(tokens []int32, pos int) {
	for i, id := range tokens {
		b.tokens, b.pos = append(b.tokens, id), append(b.pos, pos+i)
	}
}

func checkGroup(c model.Config, g model.PrefixGroup) error {
	if len(g.Prompt) == 0 {
		return errors.New("the prompt is empty: a sequence needs at least one token before the first scored one")
	}
	if err := checkTokens(c, g.Prompt); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	for i, m := range g.Members {
		if len(m.Train) != len(m.Tokens) {
			return fmt.Errorf("member %d: %d train marks for %d tokens", i, len(m.Train), len(m.Tokens))
		}
		if n := len(g.Prompt) + len(m.Tokens); n > c.ContextLimit() {
			return fmt.Errorf("member %d: %d tokens with its prompt, the model's context is %d", i, n, c.ContextLimit())
		}
		if err := checkTokens(c, m.Tokens); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
	}
	return nil
}

func checkTokens(c model.Config, ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= c.VocabSize {
			return fmt.Errorf("token %d at index %d, the vocabulary has 0 to %d: the tokenizer does not match the weights", id, i, c.VocabSize-1)
		}
	}
	return nil
}

// longest is the number of positions of the longest sequence of the group.
func (g packedGroup) longest() int {
	n := 0
	for _, m := range g.members {
		n = max(n, m.n)
	}
	return g.prompt + n
}
