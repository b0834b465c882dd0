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

func TestTemplateErrors(t *testing.T) {
	for source, want := range map[string]string{
		"{% if x %}":         "compile",
		"{{ x":               "no }} closes the tag",
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
		"{{ undefined_thing | tojson }}":             "Undefined",
		"{{ strftime_now(3) }}":                      "one format string",
		"{{ messages[0].content.nothing() }}":        "",
		"{{ 1 | tojson(nonsense=1) }}":               "nonsense",
	} {
		_, err := compile(t, source).Render([]Message{{Role: "user"}}, nil, false)
		require.ErrorIs(t, err, ErrTemplate, source)
		require.ErrorContains(t, err, want, source)
	}
	_, err := compile(t, chatML).Render([]Message{{Role: "assistant", ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage(`{"a": 1,`)}}}}, nil, false)
	require.ErrorContains(t, err, "message 0 (assistant): tool call 0 (f): arguments: not JSON")
	_, err = compile(t, chatML).WithVar("f", func() {})
	require.ErrorContains(t, err, "variable f")
}

func TestTemplateVariables(t *testing.T) {
	c := compile(t, "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}{{ strftime_now('%Y') }}")
	at := func() time.Time { return time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) }
	d, err := c.WithVar("enable_thinking", false)
	require.NoError(t, err)
	got, err := d.WithClock(at).Render(nil, nil, false)
	require.NoError(t, err)
	require.Equal(t, "off1999", got)
	got, err = c.WithClock(at).Render(nil, nil, false)
	require.NoError(t, err)
	require.Equal(t, "1999", got, "the original is unchanged")
}

// Rendering ends whatever the template does: every one of these would run for
// hours, fill the memory or overflow the stack.
func TestRunawayTemplatesEnd(t *testing.T) {
	for name, source := range map[string]string{
		"nested loops":  "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"output":        "{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
		"doubling":      "{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubling list": "{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"shared list":   "{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"shared json":   "{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
		"shared equal":  "{% set ns = namespace(s=[1], t=[1]) %}{% for a in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
		"deep list":     "{% set ns = namespace(s=[1]) %}{% for a in range(100000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"cycle":         "{% set ns = namespace() %}{% set ns.s = ns %}{{ ns }}",
		"repeat":        "{{ 'x' * 1000000000000 }}",
		"repeat list":   "{{ [1] * 1000000000000 }}",
		"pad":           "{{ 'x'.ljust(1000000000000) }}",
		"format":        "{{ '{:1000000000}'.format(1) }}",
		"replace":       "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
		"power":         "{{ 10 ** 100000000 }}",
		"macro":         "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"loop":          "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"brackets":      "{{ " + strings.Repeat("(", 100000) + " }}",
		"minuses":       "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"ifs":           strings.Repeat("{% if 1 %}", 100000),
		"elifs":         "{% if 0 %}" + strings.Repeat("{% elif 0 %}", 100000) + "{% endif %}",
		"file":          "{% include '/etc/passwd' %}",
		"import":        "{% import 'x' as y %}",
		"class":         "{{ ''.__class__.__mro__ }}",
		"overflow":      "{{ 9223372036854775807 + 1 }}",
		"batch":         "{{ [1] | batch(10000000000, 0) }}",
		"indent":        "{{ [1] | tojson(indent=1000000000) }}",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := NewChatTemplate(source, nil)
			if err == nil {
				_, err = c.Render(nil, nil, false)
			}
			require.ErrorIs(t, err, ErrTemplate)
		})
	}
}

func FuzzTemplate(f *testing.F) {
	for _, g := range loadGoldenTemplates(f).Templates[:40] {
		f.Add(g.Template)
	}
	for _, s := range []string{chatML, "{% raw %}{{ x }}{% endraw %}", "{{ {'a': {}} }}", "{#- c -#}", "{%- if tools %}{{ tools|tojson }}{% endif %}", "{{ '\\x41\\'' }}", "{{", "{{ [1,2,3][::-1] }}", "{{ '%s' % x }}", "{{ '{:>3}'.format(2) }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		c, err := NewChatTemplate(source, nil)
		if err == nil {
			_, _ = c.Render([]Message{{Role: "user", Content: "x"}, {Role: "assistant", Content: "y", ToolCalls: []ToolCall{{Name: "f"}}}}, nil, true)
		}
	})
}
