package rollout

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
)

func namedTemplate(t testing.TB, file string) textChat {
	t.Helper()
	for _, f := range realTemplates(t) {
		if f.File == file {
			return newTextChat(t, f)
		}
	}
	t.Fatalf("no template %s", file)
	return textChat{}
}

// turnOf lets a script with one question emit a turn and gives what follows it.
func turnOf(t testing.TB, chat Chat, said, stop string, results ...Message) (*transcript, delta) {
	t.Helper()
	script, err := newTranscript(chat, []tool.Spec{priceSpec}, []Message{{Role: "user", Content: "Price of tea?"}})
	require.NoError(t, err)
	script.emitted(append(chat.Encode(said), chat.Encode(stop)...), true)
	d, err := script.extend(results)
	require.NoError(t, err)
	return script, d
}

// Mistral Nemo refuses a result that answers no call: the call is given as such,
// a malformed one as a stand-in, and what was emitted stays.
func TestTemplateThatWantsCallsGetsThem(t *testing.T) {
	chat := namedTemplate(t, "mistralai-Mistral-Nemo-Instruct-2407.jinja")
	result := Message{Role: "tool", Name: "get_price", CallID: CallID(1), Content: "3"}
	const want = `[TOOL_RESULTS]{"content": 3, "call_id": "call00001"}[/TOOL_RESULTS]`
	for _, said := range []string{
		`[TOOL_CALLS][{"name":"get_price","arguments":{"item":"tea"}}]`,
		`[TOOL_CALLS] [ {"name": "get_price", "arguments": "{\"item\": \"tea\"}"} ]`,
		`[TOOL_CALLS][{"name": "get_price", "arguments": {"item"`,
		`[TOOL_CALLS][{"name": "get_price", "arguments": 3}]`,
	} {
		script, d := turnOf(t, chat, said, "</s>", result)
		require.False(t, d.forked, said)
		require.Equal(t, want, chat.Decode(d.ids), said)
		script.apply(d)
		require.True(t, strings.HasSuffix(chat.Decode(script.ids), said+"</s>"+want), said)
	}
	_, d := turnOf(t, chat, `I look.[TOOL_CALLS][{"name": "get_price", "arguments": {}}]`, "</s>", result)
	require.False(t, d.forked, "the structured form has no place for the text, the turn as it was emitted has")
}

// The emitted tokens go on only below a turn that says the same.
func TestTemplateThatWritesAnotherTurnForks(t *testing.T) {
	const body = `{{ tools|length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}<tool_call>{"name": "NAME", "arguments": {{ ARGS }}}</tool_call>TAIL{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}`
	const said = `<tool_call>{"name":"get_price","arguments":{"item":"tea"}}</tool_call>`
	template := func(name, args, tail string) textChat {
		return newTextChat(t, realTemplate{Template: strings.NewReplacer("NAME", name, "ARGS", args, "TAIL", tail).Replace(strings.ReplaceAll(body, "{{ m.content }}", "{% if m.role != 'assistant' or m.content and not '<t' in m.content %}{{ m.content }}{% endif %}"))})
	}
	result := Message{Role: "tool", Name: "get_price", CallID: CallID(1), Content: "3"}
	for _, c := range []struct {
		name, args, tail string
		forks            bool
	}{
		{"get_price", "c.function.arguments|tojson", "", false},
		{"get_price", "c.function.arguments|tojson", " \\n", false},
		{"other", "c.function.arguments|tojson", "", true},
		{"get_price", `"{}"`, "", true},
		{"get_price", "c.function.arguments|tojson", "done", true},
	} {
		chat := template(c.name, c.args, strings.ReplaceAll(c.tail, "\\n", "\n"))
		chat.ends = []string{"</s>"}
		_, d := turnOf(t, chat, said, "</s>", result)
		require.Equal(t, c.forks, d.forked, c)
		if !c.forks {
			require.Equal(t, "[tool]3</s>[assistant]", chat.Decode(d.ids))
		}
	}
	// A thought that the template drops is not there to be gone on from.
	chat := template("get_price", "c.function.arguments|tojson", "")
	chat.ends = []string{"</s>"}
	_, d := turnOf(t, chat, "<think>hm</think>"+said, "</s>", result)
	require.True(t, d.forked)
}

// A demonstration is written as the model's own template writes calls.
func TestDemonstrationInTheTemplatesFormat(t *testing.T) {
	messages := []Message{
		{Role: "user", Content: "Price of tea?"},
		priceCall(CallID(1), "tea"),
		{Role: "tool", Name: "get_price", CallID: CallID(1), Content: "3"},
		{Role: "assistant", Content: "It is 3."},
	}
	for file, want := range map[string]string{
		"mistralai-Mistral-Nemo-Instruct-2407.jinja": `[TOOL_CALLS][{"name": "get_price", "arguments": {"item": "tea", "count": 2}, "id": "call00001"}]</s>`,
		"Qwen3-Coder.jinja":                          "<tool_call>\n<function=get_price>\n<parameter=item>\ntea\n</parameter>\n<parameter=count>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>",
		"openai-gpt-oss-120b.jinja":                  ` to=functions.get_price<|channel|>commentary json<|message|>{"item": "tea", "count": 2}<|call|>`,
		"meetkai-functionary-medium-v3.2.jinja":      "get_price\n" + `{"item":"tea","count":2}<|eot_id|>`,
		"microsoft-Phi-3.5-mini-instruct.jinja":      "", // no tools: the prompt teaches Hermes
	} {
		chat := namedTemplate(t, file)
		if want == "" {
			chat.ends, want = []string{"<|end|>"}, "<tool_call>\n"+`{"name": "get_price", "arguments": {"item": "tea", "count": 2}}`+"\n</tool_call><|end|>"
		}
		d, err := encodeDemo(chat, []tool.Spec{priceSpec}, messages)
		require.NoError(t, err, file)
		require.Len(t, d.turns, 2, file)
		require.Equal(t, want, d.turns[0].content+d.turns[0].stop, file)
		var trained []int32
		for i, id := range d.ids {
			if d.train[i] {
				trained = append(trained, id)
			}
		}
		require.Equal(t, want+d.turns[1].content+d.turns[1].stop, chat.Decode(trained), file)
	}
	for file, want := range map[string]string{
		"LFM2-8B-A1B.jinja":                         "the chat template leaves structured tool calls out",
		"moonshotai-Kimi-K2.jinja":                  "which call format hermes does not read: choose another chat.call_format",
		"NVIDIA-Nemotron-Nano-v2.jinja":             "writes the opening of a turn otherwise",
		"Mistral-Small-3.2-24B-Instruct-2506.jinja": "",
	} {
		_, _, err := EncodeDemo(namedTemplate(t, file), []tool.Spec{priceSpec}, messages)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want, file)
	}
	require.NoError(t, CheckCalls(namedTemplate(t, "Qwen-Qwen3-0.6B.jinja")))
	require.ErrorContains(t, CheckCalls(namedTemplate(t, "moonshotai-Kimi-K2.jinja")), "does not read")
	require.ErrorContains(t, CheckCalls(namedTemplate(t, "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja")), "opening")
	other := namedTemplate(t, "Mistral-Small-3.2-24B-Instruct-2506.jinja")
	other.format = glmCalls
	_, _, err := EncodeDemo(other, []tool.Spec{priceSpec}, messages)
	require.ErrorContains(t, err, "which call format glm does not read")
}
