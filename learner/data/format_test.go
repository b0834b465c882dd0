package data

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const toolsJSON = `[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`

// Every column set becomes its examples; a prompt and its completion are never
// encoded together.
func TestFormats(t *testing.T) {
	type example struct {
		prompt, chosen, rejected string
		label                    bool
	}
	for name, c := range map[string]struct {
		want   Want
		row    string
		format string
		out    []example
	}{
		"text":       {WantDemonstrations, `{"text":"ab"}`, FormatText, []example{{"^", "ab$", "", false}}},
		"completion": {WantDemonstrations, `{"prompt":"a","completion":"b"}`, FormatCompletion, []example{{"^a", "b$", "", false}}},
		"messages": {WantDemonstrations, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x"}]}`, FormatMessages,
			[]example{{"^|userq$|", "x$", "", false}}},
		"chat completion": {WantDemonstrations, `{"prompt":[{"role":"user","content":"q"}],"completion":{"role":"assistant","content":"x"}}`, FormatCompletion,
			[]example{{"^|userq$|", "x$", "", false}}},
		"preference": {WantPairs, `{"prompt":"p","chosen":"c","rejected":"r"}`, FormatPreference, []example{{"^p", "c$", "r$", false}}},
		"implicit":   {WantPairs, `{"chosen":"one two good","rejected":"one two gone"}`, FormatImplicit, []example{{"^one two", " good$", " gone$", false}}},
		"implicit chat": {WantPairs, `{"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"c"}],"rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"r"}]}`,
			FormatImplicit, []example{{"^|userq$|", "c$", "r$", false}}},
		"verdict":          {WantVerdicts, `{"prompt":"p","completion":"c","label":true}`, FormatVerdict, []example{{"^p", "c$", "", true}}},
		"verdict number":   {WantVerdicts, `{"prompt":"p","completion":"c","label":0}`, FormatVerdict, []example{{"^p", "c$", "", false}}},
		"pair as verdicts": {WantVerdicts, `{"prompt":"p","chosen":"c","rejected":"r"}`, FormatPreference, []example{{"^p", "c$", "", true}, {"^p", "r$", "", false}}},
		"steps as verdicts": {WantVerdicts, `{"prompt":"p","completions":["a","b"],"labels":[true,false]}`, FormatSteps,
			[]example{{"^p", "a\n", "", true}, {"^pa\n", "b$", "", false}}},
		"steps":           {WantDemonstrations, `{"prompt":"p","completions":["a","b"],"labels":[true,false]}`, FormatSteps, []example{{"^p", "a\nb$", "", false}}},
		"prompt":          {WantPrompts, `{"prompt":"p","answer":3}`, FormatPrompt, []example{{"^p", "", "", false}}},
		"prompt of pairs": {WantPrompts, `{"prompt":"p","chosen":"c","rejected":"r"}`, FormatPrompt, []example{{"^p", "", "", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			set, rep, err := load(t, options(c.want), file(t, "d.jsonl", c.row))
			require.NoError(t, err)
			require.Equal(t, map[string]int{c.format: 1}, rep.Formats)
			var got []example
			for _, e := range set.Rows() {
				got = append(got, example{text(e.Prompt), text(e.Chosen.Tokens), text(e.Rejected.Tokens), e.Label})
			}
			require.Equal(t, c.out, got)
		})
	}
}

// The assistant's tokens alone are trained; turns that call tools weigh 2, a
// message's weight multiplies, and mask_history leaves the last turn.
func TestConversationWeights(t *testing.T) {
	row := `{"tools":` + toolsJSON + `,"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
		{"role":"tool","tool_call_id":"1","content":"r"},{"role":"assistant","content":"no","weight":0},{"role":"user","content":"?"},{"role":"assistant","content":"ok"}]}`
	path := file(t, "d.jsonl", oneLine(row))
	set, _, err := load(t, options(WantDemonstrations), path)
	require.NoError(t, err)
	e := set.Rows()[0]
	require.Equal(t, `f{"a":1}$|r$|no$|?$|ok$`, text(e.Chosen.Tokens))
	weights := func(e Example) string {
		s := ""
		for _, w := range e.Chosen.Weights {
			s += string(rune('0' + int(w)))
		}
		return s
	}
	require.Equal(t, "22222222200000000000111", weights(e)[:23])
	require.Equal(t, 12, e.Chosen.Trained())
	opt := options(WantDemonstrations)
	opt.Encoding.LastTurnOnly = true
	set, _, err = load(t, opt, path)
	require.NoError(t, err)
	require.Equal(t, 3, set.Rows()[0].Chosen.Trained())
}

func oneLine(s string) string {
	out := []byte{}
	for _, b := range []byte(s) {
		if b != '\n' && b != '\t' {
			out = append(out, b)
		}
	}
	return string(out)
}

// Earlier assistant turns of a prompt are not trained.
func TestPromptWithHistory(t *testing.T) {
	set, _, err := load(t, options(WantPairs), file(t, "d.jsonl", oneLine(`{"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"old"},{"role":"user","content":"q2"}],
		"chosen":[{"role":"assistant","content":"c"}],"rejected":[{"role":"assistant","content":"r"}]}`)))
	require.NoError(t, err)
	e := set.Rows()[0]
	require.Equal(t, "^|userq$|old$|q2$|", text(e.Prompt))
	require.Equal(t, "c$", text(e.Chosen.Tokens))
	require.Nil(t, e.Chosen.Weights)
}

func TestColumnsError(t *testing.T) {
	_, _, err := load(t, options(WantPairs), file(t, "d.jsonl", `{"question":"q","answer":"a"}`))
	var ce *ColumnsError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, []string{"answer", "question"}, ce.Found)
	require.ErrorContains(t, err, "d.jsonl:1: columns found: answer, question; pairs want one of: prompt, chosen, rejected (preference); chosen, rejected (implicit_preference)")
	// another kind of data than the algorithm wants is named
	_, _, err = load(t, options(WantDemonstrations), file(t, "d.jsonl", `{"prompt":"p","completion":"c","label":true}`))
	require.ErrorContains(t, err, "read as unpaired_preference")
	// and a format may be forced
	opt := options(WantDemonstrations)
	opt.Format = FormatCompletion
	_, _, err = load(t, opt, file(t, "d.jsonl", `{"prompt":"p","completion":"c","label":true}`))
	require.NoError(t, err)
	opt.Format = FormatPreference
	_, _, err = load(t, opt, file(t, "d.jsonl", `{"prompt":"p","completion":"c"}`))
	require.ErrorAs(t, err, &ce)
	// or columns renamed
	opt = options(WantDemonstrations)
	opt.Columns = map[string]string{"prompt": "question", "completion": "answer"}
	set, _, err := load(t, opt, file(t, "d.jsonl", `{"question":"q","answer":"a"}`))
	require.NoError(t, err)
	require.Equal(t, "^q", text(set.Rows()[0].Prompt))
	opt.Columns["reply"] = "answer"
	_, _, err = load(t, opt, "x.jsonl")
	require.ErrorContains(t, err, `columns: "reply" is no column`)
}
