package rollout

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pieces is a TextStream whose token i reads as pieces[i].
type pieces []string

func (p pieces) Push(ids ...int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(p[id])
	}
	return b.String()
}

func (p pieces) Flush() string { return "" }

// Whatever the pieces and the strings: the text is cut where the definition
// says, by the token that completes the string, and what a reader was given on
// the way is that text and nothing that had to be taken back.
func TestStopStringsMatchTheDefinition(t *testing.T) {
	vocabulary := pieces{"a", "b", "ab", "ba", "aab", "", "b\n", "\n"}
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab\n")), 1, 4, -1), 0, 3).Draw(t, "stops")
		ids := rapid.SliceOfN(rapid.Int32Range(0, int32(len(vocabulary)-1)), 1, 20).Draw(t, "ids")
		w := &textWatch{stream: vocabulary, stops: stops}
		given, text := "", ""
		for k, id := range ids {
			text += vocabulary.Push(id)
			cut := -1
			for _, s := range stops {
				if i := strings.Index(text, s); i >= 0 && (cut < 0 || i < cut) {
					cut = i
				}
			}
			stopped := w.push(id)
			require.Equal(t, cut >= 0, stopped)
			given += w.take(stopped)
			if !stopped {
				require.Equal(t, text, string(w.text))
				require.True(t, strings.HasPrefix(text, given))
				continue
			}
			w.end()
			require.Equal(t, text[:cut], string(w.text))
			require.Equal(t, text[:cut], given)
			require.True(t, strings.HasPrefix(text[cut:], w.match))
			contributing, before := 0, ""
			for i := range k + 1 {
				if len(before) < cut {
					contributing = i + 1
				}
				before += vocabulary.Push(ids[i])
			}
			require.Equal(t, contributing, w.tokens())
			return
		}
		w.end()
		given += w.take(true)
		require.Equal(t, text, given)
		require.Equal(t, len(ids), w.tokens())
	})
}

// held is a stream that gives a token's text with the next token, as runs of
// byte tokens come.
type held struct {
	pieces
	last string
}

func (h *held) Push(ids ...int32) string {
	out := h.last
	h.last = h.pieces.Push(ids...)
	return out
}
func (h *held) Flush() string { return h.last }

func TestStopStringInWhatTheStreamHeld(t *testing.T) {
	w := &textWatch{stream: &held{pieces: pieces{"a", "\n"}}, stops: []string{"\n"}}
	require.False(t, w.push(0))
	require.False(t, w.push(1))
	require.Equal(t, "a", w.take(false))
	w.end()
	require.Equal(t, "\n", w.match)
	require.Equal(t, "a", string(w.text))
	require.Empty(t, w.take(true))
}
