package model

import (
	"fmt"
	"slices"
)

// Branch is a member's place in its group.
type Branch struct {
	Pos  int // position of its first token in its sequence
	Rows int // leading tokens to compute: those that some mark depends on
	// Before is the nearest of prompt and members above it that has tokens: 0 the
	// prompt, i member i-1. Its last token predicts the member's first.
	Before int
}

// Branches places the members. It refuses a group whose members do not stand
// depth first.
func (g PrefixGroup) Branches() ([]Branch, error) {
	out := make([]Branch, len(g.Members))
	path := []int{0} // prompt and members that the next one may go on from
	for i, m := range g.Members {
		at := slices.Index(path, m.Parent)
		if at < 0 {
			return nil, fmt.Errorf("member %d: parent is %d, want one of %v: 0 for the prompt, i for member i-1, members depth first", i, m.Parent, path)
		}
		path = append(path[:at+1], i+1)
		b := Branch{Pos: len(g.Prompt), Before: m.Parent}
		if m.Parent > 0 {
			b.Pos = out[m.Parent-1].Pos + len(g.Members[m.Parent-1].Tokens)
			if len(g.Members[m.Parent-1].Tokens) == 0 {
				b.Before = out[m.Parent-1].Before
			}
		}
		if b.Before == 0 && len(g.Prompt) == 0 && len(m.Train) > 0 && m.Train[0] {
			return nil, fmt.Errorf("member %d: nothing comes before its first token, which is to be scored", i)
		}
		b.Rows = max(lastMark(m.Train), lastMark(m.Value)+1, 0)
		out[i] = b
	}
	wanted := make([]bool, len(g.Members)) // whoever goes on needs all that it goes on from
	for i := len(out) - 1; i >= 0; i-- {
		m := g.Members[i]
		if wanted[i] {
			out[i].Rows = len(m.Tokens)
		}
		if m.Parent > 0 && (wanted[i] || lastMark(m.Train) >= 0 || out[i].Rows > 0) {
			wanted[m.Parent-1] = true
		}
	}
	return out, nil
}

// lastMark is the index of the last mark, -1 without one.
func lastMark(marks []bool) int {
	for j := len(marks) - 1; j >= 0; j-- {
		if marks[j] {
			return j
		}
	}
	return -1
}
