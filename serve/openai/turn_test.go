package openai

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/rollout"
)

func hermes(t testing.TB) *rollout.CallFormat {
	t.Helper()
	f, err := rollout.CallFormatNamed("hermes")
	require.NoError(t, err)
	return f
}

func TestTurnParts(t *testing.T) {
	hide := newHider([]string{"<|im_end|>", "<|pad|>"})
	const call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
	for _, c := range []struct {
		name, text         string
		tools, thought     bool
		content, reasoning string
		calls              []string
	}{
		{name: "plain text stays as it is", text: "  Hi.\n\n there ", content: "  Hi.\n\n there "},
		{name: "empty"},
		{name: "thought then text", text: "<think>\nhm\n</think>\n\nYes", content: "Yes", reasoning: "\nhm\n"},
		{name: "the prompt opened the thought", text: "hm</think>Yes", thought: true, content: "Yes", reasoning: "hm"},
		{name: "unfinished thought", text: "hm", thought: true, reasoning: "hm"},
		{name: "call alone", text: call, tools: true, calls: []string{`f({"x":1})`}},
		{name: "text and two calls", text: "Let me see.\n" + call + "\n" + call, tools: true, content: "Let me see.\n", calls: []string{`f({"x":1})`, `f({"x":1})`}},
		{name: "no tools, no calls", text: call, content: call},
		{name: "malformed call is content", text: "<tool_call>{nonsense</tool_call>", tools: true, content: "<tool_call>{nonsense</tool_call>"},
		{name: "special tokens are hidden", text: "a<|pad|>b<|im", content: "ab<|im"},
		{name: "a mark that is none", text: "1 < 2 <thin", content: "1 < 2 <thin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &turnView{inThought: c.thought, hide: &hide}
			if c.tools {
				v.format = hermes(t)
			}
			m := v.message(c.text, true)
			content := ""
			if m.Content != nil {
				content = *m.Content
			}
			require.Equal(t, c.content, content)
			require.Equal(t, c.reasoning, m.Reasoning)
			var calls []string
			for _, tc := range m.ToolCalls {
				calls = append(calls, tc.Function.Name+"("+tc.Function.Arguments+")")
				require.Nil(t, tc.Index)
			}
			require.Equal(t, c.calls, calls)
		})
	}
}

// However a turn is cut into pieces, the pieces add up to the whole.
func TestTurnFeedIgnoresCuts(t *testing.T) {
	hide := newHider([]string{"<|im_end|>", "<|pad|>"})
	words := []string{"<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "{\"name\": \"f\", \"arguments\": {}}", "Hello", "<", "<|pad|>", "<|pa", "é", "</"}
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 12).Draw(rt, "words"), "")
		v := &turnView{inThought: rapid.Bool().Draw(rt, "thought"), hide: &hide}
		if rapid.Bool().Draw(rt, "tools") {
			v.format = hermes(t)
		}
		want := v.message(text, true)
		f := v.feed(true)
		var got Message
		content := ""
		add := func(m Message) {
			got.Reasoning += m.Reasoning
			got.ToolCalls = append(got.ToolCalls, m.ToolCalls...)
			if m.Content != nil {
				require.True(rt, utf8.ValidString(*m.Content), "half a character in %q", *m.Content)
				content += *m.Content
			}
		}
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "cut")
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++ // an engine's text has whole characters
			}
			add(f.push(rest[:n], false))
			rest = rest[n:]
		}
		add(f.push("", true))
		if want.Content != nil {
			require.Equal(rt, *want.Content, content)
		} else {
			require.Empty(rt, content)
		}
		require.Equal(rt, want.Reasoning, got.Reasoning)
		require.Len(rt, got.ToolCalls, len(want.ToolCalls))
		for i := range want.ToolCalls {
			require.Equal(rt, want.ToolCalls[i].Function, got.ToolCalls[i].Function)
			require.Equal(rt, i, *got.ToolCalls[i].Index)
		}
	})
}
