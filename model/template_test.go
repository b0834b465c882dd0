package model

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type probeFile struct {
	Conversations []struct {
		Messages []struct {
			Role, Content, Name string
			Reasoning           string `json:"reasoning_content"`
			ToolCallID          string `json:"tool_call_id"`
			ToolCalls           []struct {
				ID       string
				Function struct {
					Name      string
					Arguments json.RawMessage
				}
			} `json:"tool_calls"`
		}
		Tools []struct {
			Function struct {
				Name, Description string
				Parameters        json.RawMessage
			}
		}
	}
	Templates []struct {
		File, Template string
		Special        map[string]string
		Renders        []struct {
			Conversation int
			Generate     bool
			Text         *string
			Error        string
		}
	}
}

// compareTemplates renders what testdata/probe_template.py rendered.
func compareTemplates(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var probe probeFile
	require.NoError(t, json.Unmarshal(data, &probe))
	require.NotEmpty(t, probe.Templates)
	at := time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC)
	for _, f := range probe.Templates {
		t.Run(f.File, func(t *testing.T) {
			c, err := NewChatTemplate(f.Template, f.Special)
			require.NoError(t, err)
			c = c.WithClock(func() time.Time { return at })
			for _, r := range f.Renders {
				conv := probe.Conversations[r.Conversation]
				var messages []Message
				for _, m := range conv.Messages {
					msg := Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
					for _, call := range m.ToolCalls {
						msg.ToolCalls = append(msg.ToolCalls, ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
					}
					messages = append(messages, msg)
				}
				var tools []ToolDef
				for _, d := range conv.Tools {
					tools = append(tools, ToolDef{Name: d.Function.Name, Description: d.Function.Description, Parameters: d.Function.Parameters})
				}
				got, err := c.render(messages, tools, r.Generate)
				if r.Text == nil {
					if err == nil {
						t.Errorf("conversation %d generate %v: rendered, the reference fails with %q", r.Conversation, r.Generate, r.Error)
					}
					continue
				}
				if err != nil {
					t.Errorf("conversation %d generate %v: %v", r.Conversation, r.Generate, err)
				} else if got != *r.Text {
					t.Errorf("conversation %d generate %v:\n got %q\nwant %q", r.Conversation, r.Generate, got, *r.Text)
				}
			}
		})
	}
}

// TestTemplateGolden runs templates of our own against transformers' renderings.
func TestTemplateGolden(t *testing.T) { compareTemplates(t, "testdata/templates/cases.json") }

// TestTemplatesAgainstReference runs on templates that are not ours to keep.
func TestTemplatesAgainstReference(t *testing.T) {
	path := os.Getenv("SKEIN_TEMPLATE_CASES")
	if path == "" {
		t.Skip("set SKEIN_TEMPLATE_CASES to the output of testdata/probe_template.py to run this")
	}
	compareTemplates(t, path)
}
