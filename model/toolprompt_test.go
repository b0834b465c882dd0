package model

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const chatML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

func compile(t testing.TB, source string) *ChatTemplate {
	t.Helper()
	c, err := NewChatTemplate(source, nil)
	require.NoError(t, err)
	return c
}

func templateFile(t testing.TB, name string) *ChatTemplate {
	t.Helper()
	data, err := os.ReadFile("testdata/templates/" + name)
	require.NoError(t, err)
	return compile(t, string(data))
}

var (
	priceTool = ToolDef{Name: "get_price", Description: "Price of an item", Parameters: json.RawMessage(`{"type":"object","properties":{"item":{"type":"string"}}}`)}
	toolChat  = []Message{
		{Role: "system", Content: "You sell."},
		{Role: "user", Content: "Tea and coffee?"},
		{Role: "assistant", Content: "Let me look.", ToolCalls: []ToolCall{{Name: "get_price", Arguments: json.RawMessage(`{"item": "tea"}`)}, {Name: "get_price", Arguments: json.RawMessage(`{"item":"coffee"}`)}}},
		{Role: "tool", Content: "3", Name: "get_price"},
		{Role: "tool", Content: "4", Name: "get_price"},
		{Role: "assistant", Content: "3 and 4."},
	}
)

func TestRenderWithToolsWritesThemForTemplatesThatIgnoreThem(t *testing.T) {
	c := compile(t, chatML)
	require.False(t, c.SupportsTools())
	_, err := c.Render(toolChat, []ToolDef{priceTool}, false)
	require.ErrorContains(t, err, "use RenderWithTools", "never dropped silently")

	got, style, err := c.RenderWithTools(toolChat, []ToolDef{priceTool}, true)
	require.NoError(t, err)
	require.Equal(t, PromptTools, style)
	want := `<|im_start|>system
You sell.

You can use these tools:
<tools>
{"type": "function", "function": {"name": "get_price", "description": "Price of an item", "parameters": {"type": "object", "properties": {"item": {"type": "string"}}}}}
</tools>
To use one, write
<tool_call>
{"name": "<tool name>", "arguments": {<argument values>}}
</tool_call>
and stop. Its result comes back inside <tool_response></tool_response>.<|im_end|>
<|im_start|>user
Tea and coffee?<|im_end|>
<|im_start|>assistant
Let me look.
<tool_call>
{"name": "get_price", "arguments": {"item": "tea"}}
</tool_call>
<tool_call>
{"name": "get_price", "arguments": {"item": "coffee"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
3
</tool_response>
<tool_response>
4
</tool_response><|im_end|>
<|im_start|>assistant
3 and 4.<|im_end|>
<|im_start|>assistant
`
	require.Equal(t, want, got)

	// Without a system message one is made; without tools nothing is added.
	got, style, err = c.RenderWithTools(toolChat[1:2], []ToolDef{priceTool}, false)
	require.NoError(t, err)
	require.Equal(t, PromptTools, style)
	require.True(t, strings.HasPrefix(got, "<|im_start|>system\nYou can use these tools:"), got)
	got, style, err = c.RenderWithTools(toolChat[1:2], nil, false)
	require.NoError(t, err)
	require.Equal(t, NoTools, style)
	require.Equal(t, "<|im_start|>user\nTea and coffee?<|im_end|>\n", got)
}

func TestRenderWithToolsUsesTheTemplatesOwn(t *testing.T) {
	c := templateFile(t, "turns.jinja")
	require.True(t, c.SupportsTools())
	got, style, err := c.RenderWithTools(toolChat, []ToolDef{priceTool}, false)
	require.NoError(t, err)
	require.Equal(t, NativeTools, style)
	require.Contains(t, got, "<|sys|>\n{\"type\": \"function\"")
	require.NotContains(t, got, "You can use these tools")
	_, style, err = c.RenderWithTools(toolChat, nil, false)
	require.NoError(t, err)
	require.Equal(t, NoTools, style)

	// The word in a comment, a literal or plain text is not support.
	require.False(t, compile(t, "tools {# tools #}{{ 'tools' }}").SupportsTools())
}

// cases/training.tsv, template: "templates that drop earlier <think> rewrite
// history, so turn 2 is not an extension of turn 1": detected.
func TestCheckPrefixExtending(t *testing.T) {
	chat := []Message{{Role: "user", Content: "1"}, {Role: "assistant", Content: "<think>a</think>one"}, {Role: "user", Content: "2"}, {Role: "assistant", Content: "<think>b</think>two"}, {Role: "user", Content: "3"}}
	require.NoError(t, compile(t, chatML).CheckPrefixExtending(chat, nil))

	// Calls that replace the generation prompt rewrite it.
	var rewrite *RewriteError
	err := templateFile(t, "turns.jinja").CheckPrefixExtending(toolChat, []ToolDef{priceTool})
	require.ErrorAs(t, err, &rewrite)
	require.Equal(t, 2, rewrite.Index)
	require.ErrorContains(t, err, "<|call|>")

	err = templateFile(t, "thinks.jinja").CheckPrefixExtending(chat, nil)
	require.ErrorAs(t, err, &rewrite)
	require.Equal(t, 3, rewrite.Index)
	require.ErrorContains(t, err, "<think>a")
	// One turn alone is never rewritten.
	require.NoError(t, templateFile(t, "thinks.jinja").CheckPrefixExtending(chat[:3], nil))

	err = templateFile(t, "strict.jinja").CheckPrefixExtending(chat[1:], nil)
	require.ErrorIs(t, err, ErrTemplate)
	require.ErrorContains(t, err, "roles must alternate")
}

func TestTemplateErrors(t *testing.T) {
	for source, want := range map[string]string{
		"{% if x %}":         "compile",
		"{{ x":               "no }} closes it",
		"a\nb{% raw %}":      "line 2: no endraw",
		"{{ x | nofilter }}": "", // at rendering
	} {
		_, err := NewChatTemplate(source, nil)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrTemplate, source)
		require.ErrorContains(t, err, want, source)
	}
	for source, want := range map[string]string{
		"{{ x | nofilter }}":                         "nofilter",
		"{{ raise_exception('no way') }}":            "no way",
		"{% for i in range(20000000) %}{% endfor %}": "range is longer than 100000",
		"{{ undefined_thing | tojson }}":             "undefined",
		"{{ strftime_now('%Q') }}":                   "%Q",
		"{{ messages[0].content.nothing() }}":        "",
		"{{ 1 | tojson(nonsense=1) }}":               "nonsense",
	} {
		_, err := compile(t, source).Render([]Message{{Role: "user"}}, nil, false)
		require.ErrorIs(t, err, ErrTemplate, source)
		require.ErrorContains(t, err, want, source)
	}
	_, err := compile(t, chatML).Render([]Message{{Role: "assistant", ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage(`{"a": 1,`)}}}}, nil, false)
	require.ErrorContains(t, err, "message 0 (assistant): tool call 0 (f): arguments: not JSON")
	_, err = jsonValue(json.RawMessage(strings.Repeat("[", 5000)))
	require.ErrorContains(t, err, "nested deeper")
	_, err = jsonValue(json.RawMessage(`{} {}`))
	require.ErrorContains(t, err, "text after")
	_, err = jsonValue(json.RawMessage(`12345678901234567890`))
	require.ErrorContains(t, err, "64 bits")
}

func TestTemplateVariables(t *testing.T) {
	c := compile(t, "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}{{ strftime_now('%Y') }}")
	at := func() time.Time { return time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) }
	d := c.WithVar("enable_thinking", false).WithClock(at)
	got, err := d.Render(nil, nil, false)
	require.NoError(t, err)
	require.Equal(t, "off1999", got)
	got, err = c.WithClock(at).Render(nil, nil, false)
	require.NoError(t, err)
	require.Equal(t, "1999", got, "the original is unchanged")
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{chatML, "{% raw %}{{ x }}{% endraw %}", "{{ {'a': {}} }}", "{#- c -#}", "{%- if tools %}{{ tools|tojson }}{% endif %}", "{{ '\\x41\\'' }}", "{{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 500 || strings.Contains(source, "for") || strings.Contains(source, "macro") || strings.Contains(source, "*") {
			return // loops and powers may take long by design
		}
		c, err := NewChatTemplate(source, nil)
		if err == nil {
			_, _ = c.Render([]Message{{Role: "user", Content: "x"}}, nil, true)
		}
	})
}
