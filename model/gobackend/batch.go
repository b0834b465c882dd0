package gobackend

import (
	"fmt"

	"github.com/skein-rl/skein/model"
)

// batch is prefix groups packed into rows without padding: each group's prompt,
// then its members. Only rows that some score depends on are present: a member
// ends before its last scored token, which is predicted, never read, or with the
// last token after which the value head is read.
type batch struct {
	tokens []int32 // [N]
	pos    []int   // [N]
	groups []packedGroup
	rows   []int   // [S] the row that predicts each scored token
	target []int32 // [S]
	valued []int   // [K] the rows where the value head is read
}

// packedGroup locates one group: the prompt's rows, then the members' rows.
type packedGroup struct {
	row, prompt int
	members     []run
}

// run is consecutive rows.
type run struct{ row, n int }

// pack lays out groups and checks them against the model's sizes.
func pack(c model.Config, tc model.TrainerConfig, groups []model.PrefixGroup) (*batch, error) {
	b := &batch{}
	for g, group := range groups {
		if err := checkGroup(c, tc, group); err != nil {
			return nil, fmt.Errorf("group %d: %w", g, err)
		}
		p := len(group.Prompt)
		first := len(b.tokens)
		scored := len(b.rows) + len(b.valued)
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
			for i, value := range m.Value {
				if value {
					b.valued, r.n = append(b.valued, r.row+i), max(r.n, i+1)
				}
			}
			b.append(m.Tokens[:r.n], p)
			pg.members = append(pg.members, r)
		}
		if len(b.rows)+len(b.valued) == scored { // nothing trained: the group costs nothing
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

func checkGroup(c model.Config, tc model.TrainerConfig, g model.PrefixGroup) error {
	if err := tc.CheckMarks(g); err != nil {
		return err
	}
	if err := checkTokens(c, g.Prompt); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	for i, m := range g.Members {
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
