package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// Message is one message of a conversation as the chat template sees it. An
// assistant's Content is what the model wrote, marks of tool calls included,
// never a re-rendering of the parsed calls.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string
	Name    string // of the tool, on tool messages
	CallID  string // of the call answered, on tool messages
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

// transcript is a conversation together with the tokens the engine saw of it.
// It only ever appends tokens: what was emitted is never encoded again.
type transcript struct {
	chat     Chat
	tools    []tool.Spec
	messages []Message
	ids      []int32
	text     string // what ids read as
}

// newTranscript renders and encodes the opening of an episode.
func newTranscript(chat Chat, tools []tool.Spec, messages []Message) (*transcript, error) {
	t := &transcript{chat: chat, tools: tools, messages: messages}
	text, err := chat.Render(messages, tools, true)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	ids := chat.Encode(text)
	if len(ids) == 0 {
		return nil, errors.New("template: the rendered prompt is empty")
	}
	t.ids, t.text = ids, text
	return t, nil
}

// emitted appends a completed assistant turn: ids as the engine emitted them,
// the last of which may be a stop token. It returns the turn's text without it.
func (t *transcript) emitted(ids []int32, stopped bool) string {
	body := ids
	if stopped {
		body = ids[:len(ids)-1]
	}
	content := t.chat.Decode(body)
	t.ids = append(t.ids, ids...)
	t.text += content + t.chat.Decode(ids[len(body):])
	t.messages = append(t.messages, Message{Role: "assistant", Content: content})
	return content
}

// delta is what the environment adds to a transcript before the next turn.
type delta struct {
	ids  []int32
	text string
	// forked says that the template rewrote history: ids are then the whole new
	// sequence and shared of them equal the old one's.
	forked bool
	shared int
}

// extend renders the conversation with the tool results added and works out
// which tokens that adds. The template extends the sequence when its new
// rendering begins with the text the engine saw; then only the rest is encoded.
// Otherwise (a template that drops old thoughts, trims content, or ends turns
// with another mark than the one emitted) the whole is encoded anew and the
// trajectory forks. The transcript itself is unchanged until apply.
func (t *transcript) extend(results []Message) (delta, error) {
	text, err := t.chat.Render(append(slices.Clone(t.messages), results...), t.tools, true)
	if err != nil {
		return delta{}, fmt.Errorf("template: %w", err)
	}
	d := delta{text: text}
	rest, extends := strings.CutPrefix(text, t.text)
	if extends {
		d.text = rest
	}
	d.ids = t.chat.Encode(d.text)
	if !extends {
		d.forked, d.shared = true, commonPrefix(t.ids, d.ids)
	}
	return d, nil
}

// apply makes an extension part of the transcript.
func (t *transcript) apply(d delta, results []Message) {
	t.messages = append(t.messages, results...)
	if d.forked {
		t.ids, t.text = d.ids, d.text
		return
	}
	t.ids = append(t.ids, d.ids...)
	t.text += d.text
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

// EncodeDemo tokenises a demonstration exactly as a rollout of it would: the
// opening, every assistant turn and every extension are encoded apart, and a
// turn ends with the first stop token. train marks the assistant's tokens; its
// length is that of ids. The messages alternate as in Task.Demo: an opening
// (system, user), then assistant turns with their tool results between them. A
// template that rewrites history is an error here, since one row could not
// represent it.
func EncodeDemo(chat Chat, tools []tool.Spec, messages []Message) (ids []int32, train []bool, err error) {
	stop := chat.Stop()
	if len(stop) == 0 {
		return nil, nil, errors.New("rollout: demonstration: the chat has no stop token")
	}
	first := slices.IndexFunc(messages, func(m Message) bool { return m.Role == "assistant" })
	if first < 1 || messages[len(messages)-1].Role != "assistant" {
		return nil, nil, errors.New("rollout: demonstration: need an opening, then assistant turns, the last message being one")
	}
	t, err := newTranscript(chat, tools, slices.Clone(messages[:first]))
	if err != nil {
		return nil, nil, fmt.Errorf("rollout: demonstration: %w", err)
	}
	train = make([]bool, len(t.ids))
	mark := func(value bool) {
		for len(train) < len(t.ids) {
			train = append(train, value)
		}
	}
	for i := first; i < len(messages); {
		t.emitted(append(chat.Encode(messages[i].Content), stop[0]), true)
		mark(true)
		next := i + 1
		for next < len(messages) && messages[next].Role != "assistant" {
			next++
		}
		if next == len(messages) {
			break
		}
		results := messages[i+1 : next]
		d, err := t.extend(results)
		if err != nil {
			return nil, nil, fmt.Errorf("rollout: demonstration: %w", err)
		}
		if d.forked {
			return nil, nil, fmt.Errorf("rollout: demonstration: the chat template rewrites history after message %d; use one without or shorten the demonstration", i)
		}
		t.apply(d, results)
		mark(false)
		i = next
	}
	return t.ids, train, nil
}
