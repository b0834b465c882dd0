package rollout

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
)

// show writes a parsed turn on one line.
func show(p Parsed) string {
	var out []string
	for _, part := range p.Parts {
		switch {
		case part.Kind == PartText:
			out = append(out, "text("+part.Text+")")
		case part.Kind == PartReasoning:
			out = append(out, "thought("+part.Text+")")
		case part.Err != nil:
			out = append(out, "bad("+part.Call.Name+": "+part.Err.Error()+")")
		default:
			out = append(out, part.Call.Name+string(part.Call.Arguments))
		}
	}
	if p.Open {
		out = append(out, "open")
	}
	return strings.Join(out, " ")
}

func TestParseTurn(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"141", "text(141)"},
		{`<tool_call>{"name":"a","arguments":{"x":1}}</tool_call>`, `a{"x":1}`},
		{"<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>\n", `a{"x":1} text()`},
		{`Let me see.<tool_call>{"name":"a"}</tool_call><tool_call>{"name":"b"}</tool_call>done`, `text(Let me see.) a{} b{} text(done)`},
		{"<think>which one?</think>I take<tool_call>{\"name\":\"a\"}</tool_call>", `thought(which one?) text(I take) a{}`},
		{`<think>maybe <tool_call>{"name":"a"}</tool_call></think>no`, `thought(maybe <tool_call>{"name":"a"}</tool_call>) text(no)`},
		{`<think>forever`, `thought(forever) open`},
		// one reading only
		{`<tool_call>{"name":"a","arguments":"{\"x\":1}"}</tool_call>`, `a{"x":1}`},
		{`<tool_call>{"name":"a","parameters":{"x":1}}</tool_call>`, `a{"x":1}`},
		{`<tool_call>{"name":"a"}`, `a{}`},
		{`<tool_call>{"name":"a"}<tool_call>{"name":"b"}</tool_call>`, `a{} b{}`},
		{`<tool_call>[{"name":"a"},{"name":"b","arguments":{"y":2}}]</tool_call>`, `a{} b{"y":2}`},
		{`<tool_call>{"name":"a","arguments":{"s":"</tool_call>"}}</tool_call>!`, `a{"s":"</tool_call>"} text(!)`},
		{`<tool_call>{"name":"a","arguments":{"b":1,"a":2,"id":12345678901234567890}}</tool_call>`, `a{"b":1,"a":2,"id":12345678901234567890}`},
		// more than one reading, or none
		{`<tool_call>{"name":"a","arguments":[1]}</tool_call><tool_call>{"name":"b","arguments":{"a":1}}</tool_call>`,
			`bad(a: arguments must be an object) b{"a":1}`},
		{`<tool_call>{"name":"a","arguments":7}</tool_call>`, `bad(a: arguments must be an object)`},
		{`<tool_call>{"name":"a","arguments":null}</tool_call>`, `bad(a: arguments must be an object)`},
		{`<tool_call>{"name":"a","arguments":"x=1"}</tool_call>`, `bad(a: arguments: invalid character 'x' looking for beginning of value)`},
		{`<tool_call>{"name":"a","arguments":{"a":1,</tool_call>ok`, `bad(: invalid character '<' looking for beginning of object key string) text(ok)`},
		{`<tool_call>{"name":"a","arguments":{},"parameters":{}}</tool_call>`, `bad(a: both arguments and parameters are given)`},
		{`<tool_call>{"arguments":{}}</tool_call>`, `bad(: name is missing)`},
		{`<tool_call>{"name":""}</tool_call>`, `bad(: name is missing)`},
		{`<tool_call>"a"</tool_call>`, `bad(: a call is a JSON object)`},
		{`<tool_call>[]</tool_call>`, `bad(: an empty list of calls)`},
		{`<tool_call>{"name":"a"} and {"name":"b"}</tool_call>`, `bad(: data after the JSON value)`},
		{`<tool_call></tool_call>x`, `bad(: invalid character '<' looking for beginning of value) text(x)`},
		{`<tool_call>{'name':'a'}</tool_call>`, `bad(: invalid character '\'' looking for beginning of object key string)`},
		// cut by a limit
		{`<tool_call>{"name":"a","arguments":{"path": "/tm`, `bad(: unexpected end of JSON) open`},
		{`<tool_call>`, `bad(: unexpected end of JSON) open`},
		{`<tool_call>{"name":"a"}</tool_call><tool_call>{"na`, `a{} bad(: unexpected end of JSON) open`},
	} {
		require.Equal(t, c.want, show(ParseTurn(c.in, false, hermesCalls)), c.in)
	}
	require.Equal(t, `thought(so) text(yes)`, show(ParseTurn("so</think>yes", true, hermesCalls)))
	require.Equal(t, `thought(so) open`, show(ParseTurn("so", true, hermesCalls)))
}

func TestFormatCallsReadsBack(t *testing.T) {
	calls := []tool.Call{
		{Name: "a", Arguments: []byte(`{"x":"\"</tool_call>"}`)},
		{Name: `we"ird`},
	}
	want := `a{"x":"\"</tool_call>"} we"ird{}`
	require.Equal(t, want, show(ParseTurn(FormatCalls(calls), false, hermesCalls)))
	spaced := ParseTurn(formatCallsSpaced(calls), false, hermesCalls)
	require.Equal(t, 2, spaced.Calls())
	require.Empty(t, spaced.Text())
	require.Equal(t, "<tool_call>\n"+`{"name": "a", "arguments": {"x": "\"a:b,c\\", "y": [1, 2]}}`+"\n</tool_call>",
		formatCallsSpaced([]tool.Call{{Name: "a", Arguments: []byte(`{"x":"\"a:b,c\\","y":[1,2]}`)}}))
}

func FuzzParseTurn(f *testing.F) {
	for _, s := range []string{
		`<tool_call>{"name":"a","arguments":{"x":1}}</tool_call>`,
		`[TOOL_CALLS]a[ARGS]{"x":1}`, `{"name": "a", "parameters": {}}; {"name":"b"}`, `<|tool_call>call:a{x:<|"|>s<|"|>,l:[1]}<tool_call|>`,
		"<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", `<tool_call>a<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`,
		`<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>`, `functools[{"name":"a"}]`, `<function=a>{}</function>`,
		`<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.a<|message|>{}`, "a\n{}>>>all\nb>>>c\n{",
		"<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_name\":\"directly-answer\"}]<|END_ACTION|>", "Action:\n```json\n[]```",
		"\nAction: a\nAction Input: ```json\n{}\n```\nAction:", "a\n```json\n{\"x\":1}\n```", "<a:invoke name=\"b\"><a:parameter name=\"c\">1</a:parameter></a:invoke></tool_calls>",
		`<|tool_call_start|>[a(x='\u00e9\x4',y=(1,{"k":[None]}))]<|tool_call_end|>`,
		`<think>a</think>b<tool_call>[{"name":"a"},{}]</tool_call>c`,
		`<tool_call>{"name":"a","arguments":"{\"x\"`, `<tool_call><tool_call>`, `</think><think>`,
	} {
		for i := range callFormats {
			f.Add(s, i%7 == 0, uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, s string, inThought bool, format uint8) {
		p := ParseTurn(s, inThought, callFormats[int(format)%len(callFormats)])
		at := 0
		for _, part := range p.Parts {
			if part.End < at || part.End > len(s) {
				t.Fatalf("part ends at %d after %d of %d", part.End, at, len(s))
			}
			at = part.End
			if part.Kind == PartCall && part.Err == nil {
				if part.Call.Name == "" || len(part.Call.Arguments) == 0 || part.Call.Arguments[0] != '{' {
					t.Fatalf("call %+v", part.Call)
				}
			}
		}
		if at != len(s) {
			t.Fatalf("parts cover %d of %d bytes", at, len(s))
		}
		if utf8.ValidString(s) && !utf8.ValidString(p.Text()) {
			t.Fatal("text is not UTF-8")
		}
	})
}
