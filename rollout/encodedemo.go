package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// EncodeDemo tokenises a demonstration exactly as a rollout of it would: the
// opening, every assistant turn and every extension are encoded apart. train
// marks the assistant's tokens; its length is that of ids. The messages
// alternate as in Task.Demo: an opening (system, user), then assistant turns
// with their tool results between them.
//
// A turn in parts (Message.Calls, Message.Reasoning) is written as the chat's template writes it and
// ends with the stop token that stands there; one in Content alone is taken as it
// is and ends with the chat's first stop token. Errors: a template that rewrites
// history, since one row could not represent it, and one that does not write
// calls so that the chat's call format reads them back.
func EncodeDemo(chat Chat, tools []tool.Spec, messages []Message) (ids []int32, train []bool, err error) {
	d, err := encodeDemo(chat, tools, messages)
	return d.ids, d.train, err
}

// encodedDemo is a demonstration in tokens, with its turns as they were written.
type encodedDemo struct {
	ids   []int32
	train []bool
	turns []emittedTurn
}

func encodeDemo(chat Chat, tools []tool.Spec, messages []Message) (encodedDemo, error) {
	var d encodedDemo
	fail := func(format string, args ...any) (encodedDemo, error) {
		return encodedDemo{}, fmt.Errorf("rollout: demonstration: "+format, args...)
	}
	if len(chat.Stop()) == 0 {
		return fail("the chat has no stop token")
	}
	first := slices.IndexFunc(messages, func(m Message) bool { return m.Role == "assistant" })
	if first < 1 || messages[len(messages)-1].Role != "assistant" {
		return fail("need an opening, then assistant turns, the last message being one")
	}
	t, err := newTranscript(chat, tools, slices.Clone(messages[:first]))
	if err != nil {
		return fail("%w", err)
	}
	d.train = make([]bool, len(t.ids))
	mark := func(value bool) {
		for len(d.train) < len(t.ids) {
			d.train = append(d.train, value)
		}
	}
	for i := first; i < len(messages); {
		next := i + 1
		for next < len(messages) && messages[next].Role != "assistant" {
			next++
		}
		results := messages[i+1 : next]
		content, stop, err := t.write(messages[i], results)
		if err != nil {
			return fail("message %d: %w", i, err)
		}
		d.turns = append(d.turns, t.emitted(append(chat.Encode(content), stop), true))
		mark(true)
		if next == len(messages) {
			break
		}
		e, err := t.extend(results)
		if err != nil {
			return fail("%w", err)
		}
		if e.forked {
			return fail("the chat template rewrites history after message %d; use one without or shorten the demonstration", i)
		}
		t.apply(e)
		mark(false)
		i = next
	}
	d.ids = t.ids
	return d, nil
}

// errLeftOut marks a template that does not show the calls it is given.
var errLeftOut = errors.New("the chat template leaves structured tool calls out")

// errOpening marks a template whose prompts end with what its finished turns do
// not begin with, such as an empty thought.
var errOpening = errors.New("the chat template writes the opening of a turn otherwise once the turn is complete: a demonstration needs the thought that its prompt opens, or template variables without thoughts")

// write gives the text of a demonstrated turn and the stop token that ends it.
func (t *transcript) write(m Message, results []Message) (content string, stop int32, err error) {
	stop = t.chat.Stop()[0]
	if len(m.Calls) == 0 && m.Reasoning == "" && !OpensThought(t.written) {
		return m.Content, stop, nil
	}
	content, stop, err = t.asTemplate(m, results)
	if errors.Is(err, errLeftOut) && t.chat.Calls() == hermesCalls {
		// Such templates tell the model about Hermes marks and expect them in
		// the content.
		stop, err = t.chat.Stop()[0], nil
		content = strings.TrimSpace(m.Content + "\n" + formatCallsSpaced(m.Calls))
	}
	return content, stop, err
}

// asTemplate is the turn as the template writes it, up to the first mark that
// ends a turn.
func (t *transcript) asTemplate(m Message, results []Message) (content string, stop int32, err error) {
	render := func(m Message) (string, error) {
		return t.chat.Render(slices.Concat(t.messages, []Message{m}, results), t.tools, len(results) > 0)
	}
	text, err := render(m)
	if err != nil && len(m.Calls) > 0 {
		if other, otherErr := render(m.textArguments()); otherErr == nil {
			text, err = other, nil
		}
	}
	if err != nil {
		return "", 0, fmt.Errorf("template: %w", err)
	}
	rest, ok := strings.CutPrefix(text, t.written)
	if !ok {
		return "", 0, errOpening
	}
	end := -1
	for _, id := range t.chat.Stop() {
		if i := strings.Index(rest, t.chat.Decode([]int32{id})); i >= 0 && (end < 0 || i < end) {
			end, stop = i, id
		}
	}
	if end < 0 {
		return "", 0, errors.New("the chat template ends the turn with no stop token of the model")
	}
	content = rest[:end]
	parsed := ParseTurn(content, OpensThought(t.written), t.chat.Calls())
	calls, only := parsed.callsOnly()
	if len(calls) == 0 && len(m.Calls) > 0 {
		for _, c := range m.Calls {
			if strings.Contains(content, c.Name) {
				return "", 0, fmt.Errorf("the chat template writes tool calls as %q, which call format %s does not read: choose another chat.call_format", clip(content, 200), t.chat.Calls().Name)
			}
		}
		return "", 0, errLeftOut
	}
	for _, said := range []string{m.Reasoning, m.Content} {
		if said = strings.TrimSpace(said); !strings.Contains(content, said) {
			return "", 0, fmt.Errorf("the chat template writes the turn as %q, without its %q", clip(content, 200), clip(said, 100))
		}
	}
	same := only && len(calls) == len(m.Calls) && (m.Content != "" || parsed.Text() == "")
	for i := 0; same && i < len(calls); i++ {
		same = calls[i].Err == nil && sameCall(calls[i].Call, m.Calls[i])
	}
	if !same {
		return "", 0, fmt.Errorf("the chat template writes the turn as %q, in which call format %s does not read the calls that were given and nothing else", clip(content, 200), t.chat.Calls().Name)
	}
	return content, stop, nil
}
