package rollout

import (
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// Message is one message of a conversation as the chat template sees it. An
// assistant's turn comes in one of two forms: Content alone, marks of thoughts
// and tool calls included, or in parts, with Reasoning and Calls beside the text
// in Content. Templates exist that know only the one or only the other.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string
	Name    string // of the tool, on tool messages
	CallID  string // of the call answered, on tool messages
	// Reasoning is the thought before an assistant's Content.
	Reasoning string
	// Calls follow an assistant's Content.
	Calls []tool.Call
}

// Chat is the text side of a model: its template and tokenizer. Safe for
// concurrent use.
type Chat interface {
	// Render writes the conversation with the model's template; generate adds
	// the opening of an assistant turn.
	Render(messages []Message, tools []tool.Spec, generate bool) (string, error)
	// Encode turns rendered text into ids; marks of the template become special
	// tokens, and nothing is added at either end.
	Encode(text string) []int32
	// Decode turns ids into text, special tokens included.
	Decode(ids []int32) string
	// Special lists the marks that Encode turns into special tokens. They are
	// broken up in tool results, which must not speak for the template.
	Special() []string
	// Stop lists the ids that end an assistant turn.
	Stop() []int32
	// Calls is the form in which the model writes tool calls.
	Calls() *CallFormat
}

// neutral breaks up template marks in text that the environment wrote.
func neutral(chat Chat, text string) string {
	for _, mark := range chat.Special() {
		if len(mark) > 1 && strings.Contains(text, mark) {
			text = strings.ReplaceAll(text, mark, mark[:1]+" "+mark[1:])
		}
	}
	return text
}
