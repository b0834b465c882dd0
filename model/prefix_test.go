package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// cases/training.tsv, template: "templates that drop earlier <think> rewrite
// history, so turn 2 is not an extension of turn 1": detected, with the place.
func TestCheckPrefixExtension(t *testing.T) {
	r := CheckPrefixExtension(compile(t, chatML), nil, "<|im_end|>")
	require.True(t, r.Extends(), r.Breaks)
	require.Equal(t, 15, r.Checked)
	require.Empty(t, r.Refused)

	thinks := templateFile(t, "thinks.jinja")
	r = CheckPrefixExtension(thinks, nil, "</a>")
	require.False(t, r.Extends())
	for _, b := range r.Breaks {
		require.Equal(t, BreakReasoning, b.Kind, b)
		require.Contains(t, b.Seen, "<think>")
		require.NotContains(t, b.Rendered, "<think>")
	}
	chat := []Message{{Role: "user", Content: "1"}, {Role: "assistant", Content: "<think>a</think>one"}, {Role: "user", Content: "2"}, {Role: "assistant", Content: "two"}, {Role: "user", Content: "3"}}
	breaks, err := thinks.CheckPrefix(chat, nil, "</a>")
	require.NoError(t, err)
	require.Equal(t, 1, breaks[0].Message)
	require.ErrorContains(t, testError{breaks[0].String()}, `reasoning: in conversation "given", message 1 (assistant)`)
	_, err = templateFile(t, "strict.jinja").CheckPrefix(chat[1:], nil, "")
	require.ErrorContains(t, err, "roles must alternate")
}

type testError struct{ s string }

func (e testError) Error() string { return e.s }

// What the families' templates are known to do.
func TestPrefixReportOfFamilies(t *testing.T) {
	g := loadGoldenTemplates(t)
	kinds := func(file string) map[BreakKind]bool {
		for _, f := range g.Templates {
			if f.File != file {
				continue
			}
			c := f.compile(t)
			end, _, err := TurnEnd(c, nil, nil)
			require.NoError(t, err)
			out := map[BreakKind]bool{}
			r := CheckPrefixExtension(c, nil, end)
			t.Log(file, len(r.Breaks), r.Refused)
			for _, b := range r.Breaks {
				t.Log(b)
				out[b.Kind] = true
			}
			return out
		}
		t.Fatalf("no template %s", file)
		return nil
	}
	for file, want := range map[string][]BreakKind{
		"Qwen-Qwen2.5-7B-Instruct.jinja":                 nil,
		"qwen3_training.jinja":                           {BreakReasoning},
		"Qwen-Qwen3-0.6B.jinja":                          {BreakReasoning},
		"meta-llama-Llama-3.2-3B-Instruct.jinja":         {BreakSpace, BreakDate},
		"google-gemma-2-2b-it.jinja":                     {BreakSpace},
		"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": {BreakOpening},
		"mistralai-Mistral-Nemo-Instruct-2407.jinja":     {BreakPrompt},
	} {
		got := kinds(file)
		for _, k := range want {
			require.True(t, got[k], "%s: no break of kind %s", file, k)
		}
		if want == nil {
			require.Empty(t, got, file)
		}
	}
}
