package model

import (
	"fmt"
	"strings"

	"github.com/skein-rl/skein/model/internal/jinja"
)

// ToolStyle says how tools were put into a prompt.
type ToolStyle string

const (
	// NoTools: none were given.
	NoTools ToolStyle = "none"
	// NativeTools: the model's own template wrote them.
	NativeTools ToolStyle = "native"
	// PromptTools: the template ignores tools, so they were written into the
	// messages, as RenderWithTools describes.
	PromptTools ToolStyle = "prompt"
)

// RenderWithTools writes a conversation with tools for any template, and says
// how. A template that looks at tools gets them (NativeTools). For others they
// are written into the messages (PromptTools), in the form that Hermes made
// common:
//
//   - the system message, made when there is none, ends with the tools as one
//     JSON object a line inside <tools></tools> and with how to call them;
//   - an assistant's ToolCalls follow its content, each as
//     <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>;
//   - tool messages become user messages of <tool_response> blocks, adjacent
//     ones joined, because few templates know the role "tool".
func (c *ChatTemplate) RenderWithTools(messages []Message, tools []ToolDef, addGenerationPrompt bool) (string, ToolStyle, error) {
	if c.SupportsTools() {
		style := NativeTools
		if len(tools) == 0 {
			style = NoTools
		}
		text, err := c.render(messages, tools, addGenerationPrompt)
		return text, style, err
	}
	written, style, err := writeTools(messages, tools)
	if err != nil {
		return "", style, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	text, err := c.render(written, nil, addGenerationPrompt)
	return text, style, err
}

// writeTools turns a conversation with tools into one of plain messages.
func writeTools(messages []Message, tools []ToolDef) ([]Message, ToolStyle, error) {
	style := NoTools
	var out []Message
	if len(tools) > 0 {
		style = PromptTools
		text, err := toolSystemText(tools)
		if err != nil {
			return nil, style, err
		}
		system := Message{Role: "system", Content: text}
		if len(messages) > 0 && messages[0].Role == "system" {
			if messages[0].Content != "" {
				system.Content = messages[0].Content + "\n\n" + text
			}
			messages = messages[1:]
		}
		out = append(out, system)
	}
	joining := false // the last message is ours, of tool responses
	for i, m := range messages {
		switch {
		case m.Role == "tool":
			block := "<tool_response>\n" + m.Content + "\n</tool_response>"
			if joining {
				out[len(out)-1].Content += "\n" + block
			} else {
				out = append(out, Message{Role: "user", Content: block})
			}
			joining = true
			continue
		case len(m.ToolCalls) > 0:
			var b strings.Builder
			b.WriteString(m.Content)
			for _, call := range m.ToolCalls {
				text, err := ToolCallText(call)
				if err != nil {
					return nil, style, fmt.Errorf("message %d: %w", i, err)
				}
				if b.Len() > 0 {
					b.WriteByte('\n')
				}
				b.WriteString(text)
			}
			m.Content, m.ToolCalls = b.String(), nil
		}
		joining = false
		out = append(out, m)
	}
	return out, style, nil
}

func toolSystemText(tools []ToolDef) (string, error) {
	var b strings.Builder
	b.WriteString("You can use these tools:\n<tools>\n")
	for _, t := range tools {
		v, err := t.value()
		if err != nil {
			return "", err
		}
		line, err := jinja.DumpJSON(v)
		if err != nil {
			return "", err
		}
		b.WriteString(line + "\n")
	}
	b.WriteString("</tools>\nTo use one, write\n<tool_call>\n{\"name\": \"<tool name>\", \"arguments\": {<argument values>}}\n</tool_call>\n" +
		"and stop. Its result comes back inside <tool_response></tool_response>.")
	return b.String(), nil
}

// ToolCallText is a call in the Hermes form:
// <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>.
func ToolCallText(c ToolCall) (string, error) {
	args, err := jinja.DecodeJSON(c.Arguments)
	if err != nil {
		return "", fmt.Errorf("tool call %s: arguments: %w", c.Name, err)
	}
	v := jinja.NewDict()
	v.Set("name", c.Name)
	v.Set("arguments", args)
	body, err := jinja.DumpJSON(v)
	if err != nil {
		return "", err
	}
	return "<tool_call>\n" + body + "\n</tool_call>", nil
}
