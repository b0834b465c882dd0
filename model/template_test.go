package model

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goldenTemplates is what scripts/golden_templates.py wrote.
type goldenTemplates struct {
	Conversations []struct {
		Name     string
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
	Templates []goldenTemplate
}

type goldenTemplate struct {
	Origin, File, Template string
	Special                map[string]string
	Renders                []struct {
		Conversation int
		Generate     bool
		Vars         map[string]any
		Text         *string
		Error        string
	}
}

func loadGoldenTemplates(t testing.TB) goldenTemplates {
	t.Helper()
	f, err := os.Open("testdata/templates/golden.json.gz")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var g goldenTemplates
	require.NoError(t, json.NewDecoder(z).Decode(&g))
	require.Greater(t, len(g.Templates), 100)
	return g
}

func (g *goldenTemplates) conversation(i int) (messages []Message, tools []ToolDef) {
	for _, m := range g.Conversations[i].Messages {
		msg := Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
		for _, call := range m.ToolCalls {
			msg.ToolCalls = append(msg.ToolCalls, ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
		}
		messages = append(messages, msg)
	}
	for _, d := range g.Conversations[i].Tools {
		tools = append(tools, ToolDef{Name: d.Function.Name, Description: d.Function.Description, Parameters: d.Function.Parameters})
	}
	return messages, tools
}

// compile gives the template that a list of renderings was made with.
func (f *goldenTemplate) compile(t testing.TB) *ChatTemplate {
	t.Helper()
	c, err := NewChatTemplate(f.Template, f.Special)
	require.NoError(t, err)
	at := time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC)
	return c.WithClock(func() time.Time { return at })
}

// TestTemplateGolden renders what transformers rendered: every template of
// llama.cpp and TRL and four of our own, over all conversations. Where the
// reference refuses, so must we.
func TestTemplateGolden(t *testing.T) {
	g := loadGoldenTemplates(t)
	for _, f := range g.Templates {
		t.Run(f.Origin+"/"+strings.TrimSuffix(f.File, ".jinja"), func(t *testing.T) {
			base := f.compile(t)
			for _, r := range f.Renders {
				c := base
				for k, v := range r.Vars {
					var err error
					c, err = c.WithVar(k, v)
					require.NoError(t, err)
				}
				messages, tools := g.conversation(r.Conversation)
				name := g.Conversations[r.Conversation].Name
				got, err := c.render(messages, tools, r.Generate)
				switch {
				case r.Text == nil && err == nil:
					t.Errorf("%s generate %v %v: rendered, the reference fails with %q", name, r.Generate, r.Vars, r.Error)
				case r.Text == nil:
				case err != nil:
					t.Errorf("%s generate %v %v: %v", name, r.Generate, r.Vars, err)
				case got != *r.Text:
					n := commonBytes(got, *r.Text)
					t.Errorf("%s generate %v %v: at byte %d\n got %q\nwant %q", name, r.Generate, r.Vars, n, excerpt(got, n), excerpt(*r.Text, n))
				}
			}
		})
	}
}
