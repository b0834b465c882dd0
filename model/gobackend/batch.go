package gobackend

import (
	"fmt"

	"github.com/skein-rl/skein/model"
)

// batch is prefix groups packed into rows without padding: each group's prompt,
// then its members. Only rows that some score depends on are present: a member
// that nothing goes on from ends before its last scored token, which is predicted,
// never read, or with the last token after which the value head is read.
type batch struct {
	tokens []int32 // [N]
	pos    []int   // [N]
	groups []packedGroup
	rows   []int     // [S] the row that predicts each scored token
	target []int32   // [S]
	valued []int     // [K] the rows where the value head is read
	drop   []dropRow // [N], nil: no dropout
}

// packedGroup locates one group: the prompt's rows, then the members' rows, depth
// first.
type packedGroup struct {
	row, prompt int
	members     []sequence
}

// run is consecutive rows.
type run struct{ row, n int }

// end is the row behind the last.
func (r run) end() int { return r.row + r.n }

// sequence is a run of rows at consecutive positions of a group.
type sequence struct {
	run
	pos int
}

// pack lays out groups and checks them against the model's sizes.
func pack(c model.Config, tc model.TrainerConfig, groups []model.PrefixGroup) (*batch, error) {
	b := &batch{}
	for g, group := range groups {
		branches, err := checkGroup(c, tc, group)
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", g, err)
		}
		p := len(group.Prompt)
		first := len(b.tokens)
		scored := len(b.rows) + len(b.valued)
		pg := packedGroup{row: first, prompt: p}
		promptKeys, memberKeys := group.DropoutRows()
		b.append(group.Prompt, 0)
		b.appendDrop(group.Dropout, promptKeys)
		for i, m := range group.Members {
			br := branches[i]
			r := sequence{run{len(b.tokens), br.Rows}, br.Pos}
			before := first + p - 1 // the row that predicts the first token
			if br.Before > 0 {
				before = pg.members[br.Before-1].end() - 1
			}
			for i, train := range m.Train {
				if train {
					b.rows, b.target = append(b.rows, before), append(b.target, m.Tokens[i])
				}
				before = r.row + i
			}
			for i, value := range m.Value {
				if value {
					b.valued = append(b.valued, r.row+i)
				}
			}
			b.append(m.Tokens[:r.n], r.pos)
			if memberKeys != nil {
				b.appendDrop(group.Dropout, memberKeys[i][:r.n])
			}
			pg.members = append(pg.members, r)
		}
		if len(b.rows)+len(b.valued) == scored { // nothing trained: the group costs nothing
			b.tokens, b.pos = b.tokens[:first], b.pos[:first]
			b.drop = b.drop[:min(len(b.drop), first)]
			continue
		}
		b.groups = append(b.groups, pg)
	}
	if b.drop != nil {
		b.appendDrop(model.Dropout{}, nil) // the last groups may be without
	}
	return b, nil
}

func (b *batch) append(tokens []int32, pos int) {
	for i, id := range tokens {
		b.tokens, b.pos = append(b.tokens, id), append(b.pos, pos+i)
	}
}

func checkGroup(c model.Config, tc model.TrainerConfig, g model.PrefixGroup) ([]model.Branch, error) {
	if err := tc.CheckMarks(g); err != nil {
		return nil, err
	}
	branches, err := g.Branches()
	if err != nil {
		return nil, err
	}
	if err := checkTokens(c, g.Prompt); err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	for i, m := range g.Members {
		if n := branches[i].Pos + len(m.Tokens); n > c.ContextLimit() {
			return nil, fmt.Errorf("member %d: %d tokens with its prompt, the model's context is %d", i, n, c.ContextLimit())
		}
		if err := checkTokens(c, m.Tokens); err != nil {
			return nil, fmt.Errorf("member %d: %w", i, err)
		}
	}
	return branches, nil
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
	n := g.prompt
	for _, m := range g.members {
		n = max(n, m.pos+m.n)
	}
	return n
}
