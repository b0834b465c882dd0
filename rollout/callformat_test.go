package rollout

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCallFormats(t *testing.T) {
	for _, c := range []struct{ format, in, want string }{
		{"mistral", `[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, {"name":"b"}]`, `a{"x":1} b{}`},
		{"mistral", `Sure.[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}`, `text(Sure.) a{"x":1} b{}`},
		{"mistral", `[TOOL_CALLS]a{"x":1}`, `bad(: no [ARGS] follows the name) open`},
		{"mistral", `[TOOL_CALLS][{"name":"a","arguments":{"x`, `bad(: unexpected end of JSON) open`},
		{"mistral", `[TOOL_CALLS]a[ARGS]{"x"[TOOL_CALLS]b[ARGS]{}`, `bad(: invalid character '[' after object key) b{}`},
		{"llama3", `{"name": "a", "parameters": {"x": 1}}`, `a{"x":1}`},
		{"llama3", `<|python_tag|>{"type": "function", "name": "a", "parameters": {}}`, `a{}`},
		{"llama3", `{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"y": 2}}`, `a{} b{"y":2}`},
		{"llama3", `<|python_tag|>print(1)`, `bad(: code after <|python_tag|> is not a call with a name and parameters)`},
		{"llama3", `The name is {"name": "a"}`, `text(The name is {"name": "a"})`},
		{"llama3", `{"name": "a", "parameters": {"x`, `bad(: unexpected end of JSON) open`},
		{"phi", `<|tool_call|>[{"name": "a", "arguments": {"x": 1}}]<|/tool_call|>ok`, `a{"x":1} text(ok)`},
		{"functools", ` functools[{"name": "a", "arguments": {"x": 1}}]`, `text() a{"x":1}`},
		{"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{\"x\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `a{"x":1} text() b{}`},
		{"deepseek", "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `text(So.) a{"x":1}`},
		{"deepseek", "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\"", `bad(a: arguments are not JSON) open`},
		{"function-tag", `<function=a>{"x": 1}</function>`, `a{"x":1}`},
		{"function-tag", `<function=a>{x}</function>`, `bad(a: arguments are not JSON)`},
		{"qwen-xml", "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>", `a{"x":1,"s":"two\nlines"}`},
		{"qwen-xml", "<tool_call>\n<function=a>\n<parameter=x>\n1\n</function>\n</tool_call>", `bad(: expected <parameter=KEY>value</parameter>)`},
		{"qwen-xml", `<tool_call>{"name":"a"}</tool_call>`, `a{}`},
		{"glm", "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>t</arg_value>\n</tool_call>", `a{"x":1,"s":"t"}`},
		{"glm", "<tool_call>a\n<arg_key>x</arg_key></tool_call>", `bad(: expected <arg_key>key</arg_key><arg_value>value</arg_value>)`},
		{"gemma4", `<|tool_call>call:a{x:1,s:<|"|>it's, {b}<|"|>,l:[true,{k:null}],e:{}}<tool_call|>`, `a{"x":1,"s":"it's, {b}","l":[true,{"k":null}],"e":{}}`},
		{"gemma4", `<|tool_call>call:a{x:word}<tool_call|>`, `bad(: expected a value, got word)`},
		{"function-gemma", `<start_function_call>call:a{x:<escape>t<escape>}<end_function_call>`, `a{"x":"t"}`},
		{"harmony", `<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}`, `thought(hm) a{"x":1}`},
		{"harmony", ` to=functions.a<|channel|>commentary json<|message|>{"x": "<|end|>"}<|call|>`, `a{"x":"<|end|>"}`},
		{"harmony", `<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.a<|message|>{}`, `text(I look.) a{}`},
		{"harmony", `<|channel|>final<|message|>It is 3.`, `text(It is 3.)`},
		{"harmony", `It is 3. to=functions`, `text(It is 3. to=functions)`},
		{"harmony", `<|channel|>commentary to=functions.a`, `bad(: no <|message|> follows the recipient) open`},
		{"harmony", `<|channel|>commentary to=functions.a<|message|>{"x`, `bad(: unexpected end of JSON) open`},
		{"harmony", `<|channel|>commentary to=functions.a<|message|>tea`, `bad(: invalid character 'e' in literal true (expecting 'r'))`},
		{"harmony", `<|channel|>commentary to=functions.<|message|>{}`, `bad(: name is missing)`},
		{"functionary", "a\n{\"x\": 1}>>>b\n{}", `a{"x":1} b{}`},
		{"functionary", ">>>all\nIt is >>>a\n{}", `text(It is) a{}`},
		{"functionary", "all\nIt is 3.", `text(It is 3.)`},
		{"functionary", "Hello\nyou", "text(Hello\nyou)"},
		{"functionary", ">>>python\nprint(1)", `bad(: invalid character 'p' looking for beginning of value)`},
		{"functionary", "a\n{\"x\"", `bad(: unexpected end of JSON) open`},
		{"functionary", ">>>a", `bad(: no arguments follow the name) open`},
		{"cohere", `<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "a", "parameters": {"x": 1}},
    {"tool_call_id": "1", "tool_name": "b", "parameters": {}}
]<|END_ACTION|>`, `thought(hm) a{"x":1} b{}`},
		{"cohere", `<|START_RESPONSE|>It is 3.<|END_RESPONSE|>`, `text(It is 3.)`},
		{"cohere", "I look.\nAction:\n```json\n[{\"tool_name\": \"a\", \"parameters\": {\"x\": 1}}]```\n", `text(I look.) a{"x":1} text()`},
		{"cohere", "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]\n```3", `text() text(3)`},
		{"cohere", `<|START_ACTION|>[{"tool_name": "a"`, `bad(: unexpected end of JSON) open`},
		{"cohere", `<|START_ACTION|>[{"tool": "a"}]<|END_ACTION|>`, `bad(: name is missing)`},
		{"cohere", `Action: none.`, `text(Action: none.)`},
		{"react", "Thought: I look.\nAction: a\nAction Input: {\"x\": 1}\nObservation: 3", `text(Thought: I look.) a{"x":1} text(Observation: 3)`},
		{"react", "Action: `a`\nAction Input:\n```json\n{\"x\": 1}\n```\nAction: b\nAction Input: {}", `a{"x":1} b{}`},
		{"react", "Action: a\nAction Input: tea", `bad(: invalid character 'e' in literal true (expecting 'r'))`},
		{"react", "Action: a", `bad(: no Action Input: follows the action) open`},
		{"react", "Action: a\nAction Input: {\"x\"", `bad(: unexpected end of JSON) open`},
		{"react", "Action:\nAction Input: {}", `bad(: name is missing)`},
		{"react", "Thought: done\nFinal Answer: 3", `text(3)`},
		{"react", "The Action: a", `text(The Action: a)`},
		{"fenced", "I look.\n```json\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n```\nok", `text(I look.) a{"x":1} text(ok)`},
		{"fenced", "a\n```json\n{\"x\": 1}\n```", `a{"x":1}`},
		{"fenced", "```tool_call\n[{\"tool\": \"a\", \"args\": {}}, {\"tool_names\": [\"b\"], \"input\": {}}]\n```", `a{} b{}`},
		{"fenced", "Like this:\n```json\n{\"x\": 1}\n```", "text(Like this:\n```json\n{\"x\": 1}\n```)"},
		{"fenced", "```python\nname = 1\n```", "text(```python\nname = 1\n```)"},
		{"fenced", "```json\n{\"name\": \"a\", \"arguments\": {\"x\"\n```\n", "bad(: invalid character '`' after object key) text()"},
		{"fenced", "```json\n{\"name\": \"a\", \"tool\": \"b\"}\n```", `bad(a: the name is given twice)`},
		{"fenced", "```json\n{\"name\": \"a\", \"arg", `bad(: unexpected end of JSON) open`},
		{"xml", "ok<minimax:tool_call>\n<invoke name=\"a\">\n<parameter name=\"x\">1</parameter>\n<parameter name=\"s\">two\nlines</parameter>\n</invoke>\n<invoke name=\"b\">\n</invoke>\n</minimax:tool_call>", `text(ok) a{"x":1,"s":"two\nlines"} text() b{}`},
		{"xml", `<function name="a"><param name="x">tea</param></function>`, `a{"x":"tea"}`},
		{"xml", `<function name="a">{"x": 1}</function>`, `a{"x":1}`},
		{"xml", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"a\">\n<｜DSML｜parameter name=\"s\" string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", `a{"s":"1","x":[1]}`},
		{"xml", `<invoke name="a"><parameter name="x" string="false">tea</parameter></invoke>`, `bad(a: the value of x is not JSON)`},
		{"xml", `<invoke name="a"><parameter name="x">1</invoke>`, `bad(a: no </parameter> closes the value of x)`},
		{"xml", `<invoke name="a">tea</invoke>`, `bad(a: expected <parameter name="KEY">value</parameter>)`},
		{"xml", `<invoke name="a"><parameter name="x">1</parameter>`, `bad(a: no </invoke> closes the call) open`},
		{"xml", `<invoke name="">x</invoke>`, `text(<invoke name="">x</invoke>)`},
		{"lfm2", `I look.<|tool_call_start|>[a(x=1, s='it\'s "t"\n', l=[True, None, (1.5,)], d={'k': -2}), b()]<|tool_call_end|>ok`, `text(I look.) a{"x":1,"s":"it's \"t\"\n","l":[true,null,[1.5]],"d":{"k":-2}} b{} text(ok)`},
		{"lfm2", `<|tool_call_start|>[{"name": "a", "arguments": {}}]<|tool_call_end|>`, `a{}`},
		{"lfm2", `<|tool_call_start|>[a(s="<|tool_call_end|>")]`, `a{"s":"<|tool_call_end|>"}`},
		{"lfm2", `<|tool_call_start|>[a(x=1, x=2)]<|tool_call_end|>`, `bad(: argument x is given twice)`},
		{"lfm2", `<|tool_call_start|>[a(1)]<|tool_call_end|>`, `bad(: expected KEY=VALUE)`},
		{"lfm2", `<|tool_call_start|>[a(x=open('f'))]<|tool_call_end|>`, `bad(: expected a value, got open('f'))]<|tool_call_end|>)`},
		{"lfm2", `<|tool_call_start|>[a(x=`, `bad(: unexpected end of the calls) open`},
		{"lfm2", `<|tool_call_start|>[]<|tool_call_end|>`, `bad(: an empty list of calls)`},
		{"lfm2", `<|tool_call_start|>` + strings.Repeat("[a(x=", 2) + `<|tool_call_start|>[b()]<|tool_call_end|>`, `bad(: expected a value, got a(x=<|tool_call_start|>[b()]<|tool_call_… [5 bytes cut]) b{}`},
		{"lfm2", `<|tool_call_start|>a(x=` + strings.Repeat("[", 200) + `)<|tool_call_end|>`, `bad(: arguments are nested deeper than 100)`},
		// Hermes marks are understood beside any other.
		{"mistral", `<tool_call>{"name":"a"}</tool_call>`, `a{}`},
	} {
		f, err := CallFormatNamed(c.format)
		require.NoError(t, err)
		require.Equal(t, c.want, show(ParseTurn(c.in, false, f)), "%s: %s", c.format, c.in)
	}
	_, err := CallFormatNamed("nonsense")
	require.ErrorContains(t, err, `"nonsense" is unknown; the known ones are harmony,`)
}

func TestEveryFormatIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/templates.md")
	require.NoError(t, err)
	for _, name := range CallFormats() {
		require.Contains(t, string(page), "`"+name+"`")
	}
}

// A turn of nothing but marks is read in time that grows with its length, and
// every byte of it stands in a part.
func TestHostileTurns(t *testing.T) {
	const size = 32 << 10
	for _, f := range callFormats {
		for _, piece := range []string{
			callOpen, "<think>", "</think>", "<|end|>", "<|start|>assistant to=functions.a", "<|message|>", "<|channel|>analysis<|message|>", ">>>", ">>>a\n", ">>>all\n", "Action:", "\nAction: a",
			"\nAction: a\nAction Input: ", "Action: ```json\n", "<|START_ACTION|>[", "<|START_THINKING|>", "```", "a\n```json\n", "```tool\n{", `"name":`, `<invoke name="a">`, `<a`, `<function_calls>`,
			`<parameter name="b">`, "<|tool_call_start|>[a(b=", "<|tool_call_start|>", "[", "(", "'", "{", "<|tool_call>call:a{", "[TOOL_CALLS]", "[TOOL_CALLS]a[ARGS]{", "<function=", "<arg_key>", "<｜tool▁call▁begin｜>", "functools[",
		} {
			text := strings.Repeat(piece, size/len(piece))
			p := ParseTurn(text, false, f)
			require.Equal(t, len(text), p.Parts[len(p.Parts)-1].End, "%s: %s", f.Name, piece)
		}
	}
}

// Every family's template writes calls that the format chosen for it reads back:
// what stands between the question and the tool's result, as transformers
// rendered it.
func TestTemplatesCallsAreReadBack(t *testing.T) {
	f, err := os.Open("../model/testdata/templates/golden.json.gz")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var golden struct {
		Conversations []struct{ Name string }
		Templates     []struct {
			File, Template string
			Renders        []struct {
				Conversation int
				Generate     bool
				Vars         map[string]any
				Text         *string
			}
		}
	}
	require.NoError(t, json.NewDecoder(z).Decode(&golden))
	formats := map[string]string{
		"Qwen-Qwen2.5-7B-Instruct.jinja": "hermes", "Qwen-Qwen3-0.6B.jinja": "hermes", "HuggingFaceTB-SmolLM3-3B.jinja": "hermes",
		"NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": "hermes",
		"Qwen3-Coder.jinja": "qwen-xml", "Qwen3.5-4B.jinja": "qwen-xml", "nemotron_3_nano.jinja": "qwen-xml",
		"GLM-4.6.jinja":                          "glm",
		"meta-llama-Llama-3.1-8B-Instruct.jinja": "llama3", "meta-llama-Llama-3.2-3B-Instruct.jinja": "llama3", "meta-llama-Llama-3.3-70B-Instruct.jinja": "llama3",
		"mistralai-Mistral-Nemo-Instruct-2407.jinja": "mistral", "Mistral-Small-3.2-24B-Instruct-2506.jinja": "mistral", "unsloth-mistral-Devstral-Small-2507.jinja": "mistral",
		"deepseek-ai-DeepSeek-V3.1.jinja": "deepseek", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": "deepseek", "deepseekv3.jinja": "deepseek",
		"google-gemma-4-31B-it.jinja":                "gemma4",
		"fireworks-ai-llama-3-firefunction-v2.jinja": "functools",
	}
	seen := map[string]bool{}
	for _, tmpl := range golden.Templates {
		want, listed := formats[tmpl.File]
		if !listed {
			continue
		}
		format := callFormatOf(tmpl.Template)
		require.Equal(t, want, format.Name, tmpl.File)
		for _, r := range tmpl.Renders {
			if golden.Conversations[r.Conversation].Name != "call" || r.Generate || r.Vars != nil || r.Text == nil {
				continue
			}
			_, turn, _ := strings.Cut(*r.Text, "Price of tea?")
			if i := strings.LastIndex(turn, `3.0`); i >= 0 {
				turn = turn[:i]
			}
			if !strings.Contains(turn, "get_price") {
				continue // SmolLM3's leaves structured calls out
			}
			var args []byte
			name := ""
			for at := 0; at < len(turn) && name == ""; at++ { // the turn's own opening is the template's
				if p := ParseTurn(turn[at:], false, format); p.Calls() > 0 && p.Parts[0].Kind == PartCall && p.Parts[0].Err == nil {
					name, args = p.Parts[0].Call.Name, p.Parts[0].Call.Arguments
				}
			}
			require.Equal(t, "get_price", name, "%s: %s", tmpl.File, turn)
			require.JSONEq(t, `{"item":"tea","count":2,"w":[0.5,1e-05],"deep":{"b":null,"a":false,"s":"\u00fc\n\"q\""}}`, string(args), tmpl.File)
			seen[tmpl.File] = true
		}
	}
	for f := range formats {
		if !seen[f] {
			t.Logf("%s: the template shows no call or refuses the conversation", f)
		}
	}
	require.Greater(t, len(seen), 12)
}
