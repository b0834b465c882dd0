package grammar

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

var _ model.Constraint = (*Matcher)(nil)

// testVocabulary has every byte, pieces that cross the borders of JSON's parts,
// and a stop token, which is its last id.
func testVocabulary(t testing.TB) *Vocabulary {
	t.Helper()
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, s := range []string{
		`{"`, `":`, `": `, `",`, `", "`, `"}`, `"},{"`, `}}`, `]}`, `[[`, `{}`, `[]`, `true`, `false`, `null`, "\n ", `\"`, `\u00`, `\n`,
		"name", "the", " a", "ab", "123", "0.", "e+", "\u00e9", "\U0001f600", "日本", "<tool_call>", "</tool_call>", "\n</", `tool`, `": {"`, `a": 1`, `-1`, `,"`,
	} {
		tokens = append(tokens, []byte(s))
	}
	tokens = append(tokens, []byte("</s>"))
	v, err := newVocabulary(append(tokens[:len(tokens)-1], nil), []int32{int32(len(tokens) - 1)})
	require.NoError(t, err)
	return v
}

func (v *Vocabulary) allowed(m *Matcher) []int32 {
	mask := make([]uint64, v.Words())
	for i := range mask {
		mask[i] = ^uint64(0)
	}
	m.Allow(mask)
	var ids []int32
	for id := range v.size {
		if mask[id/64]>>(id%64)&1 == 1 {
			ids = append(ids, int32(id))
		}
	}
	return ids
}

// write draws allowed tokens until the stop token, which is likelier the longer
// the text is; ok is false when the text grew too long.
func (v *Vocabulary) write(t testing.TB, p *Program, r *rand.Rand) (text string, ok bool) {
	m, err := p.Start()
	if err != nil {
		t.Fatal(err)
	}
	for n := range 400 {
		ids := v.allowed(m)
		if len(ids) == 0 {
			t.Fatalf("after %q nothing is allowed", text)
		}
		id := ids[r.IntN(len(ids))]
		// After a while, prefer what closes.
		for try := 0; n > 20 && try < 8 && closing(v, id) < 1; try++ {
			id = ids[r.IntN(len(ids))]
		}
		if m.Complete() && n > 5 {
			id = v.stop[0]
		}
		if err := m.Accept(id); err != nil {
			t.Fatalf("after %q: allowed token %d (%q): %v", text, id, v.bytes[id], err)
		}
		if id == v.stop[0] {
			return text, true
		}
		text += string(v.bytes[id])
	}
	return text, false
}

func closing(v *Vocabulary, id int32) int {
	for _, c := range []byte(`"}]`) {
		if len(v.bytes[id]) == 1 && v.bytes[id][0] == c {
			return 1
		}
	}
	return 0
}

func matches(t testing.TB, g *Grammar, text string) bool {
	t.Helper()
	ok, err := g.Matches(text)
	require.NoError(t, err)
	return ok
}
