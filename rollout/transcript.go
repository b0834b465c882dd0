package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// transcript is a conversation together with the tokens the engine saw of it.
// It only ever appends tokens: what was emitted is never encoded again (P4). The
// template is asked for what comes after a turn, never for the turn.
type transcript struct {
	chat     Chat
	tools    []tool.Spec
	messages []Message // those that written shows
	ids      []int32
	// written is the template's rendering of messages with the opening of the
	// next turn. Emitted turns stand in it as the template writes them, which
	// may be another notation of the same calls.
	written string
	turn    emittedTurn // what follows written
}

// emittedTurn is an assistant turn as the engine emitted it.
type emittedTurn struct {
	content string // without the stop token
	stop    string // the stop token's text; "" without one
	parsed  Parsed
}

// newTranscript renders and encodes the opening of an episode.
func newTranscript(chat Chat, tools []tool.Spec, messages []Message) (*transcript, error) {
	text, err := chat.Render(messages, tools, true)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	ids := chat.Encode(text)
	if len(ids) == 0 {
		return nil, errors.New("template: the rendered prompt is empty")
	}
	return &transcript{chat: chat, tools: tools, messages: messages, ids: ids, written: text}, nil
}

// emitted appends a completed assistant turn: ids as the engine emitted them,
// the last of which may be a stop token.
func (t *transcript) emitted(ids []int32, stopped bool) emittedTurn {
	body := ids
	if stopped {
		body = ids[:len(ids)-1]
	}
	t.ids = append(t.ids, ids...)
	content := t.chat.Decode(body)
	t.turn = emittedTurn{
		content: content, stop: t.chat.Decode(ids[len(body):]),
		parsed: ParseTurn(content, OpensThought(t.written), t.chat.Calls()),
	}
	return t.turn
}

// conversation is what was said so far: messages as the template got them, and the
// last turn as it was written.
func (t *transcript) conversation() []Message {
	return append(slices.Clone(t.messages), Message{Role: "assistant", Content: t.turn.content})
}

// delta is what the environment adds to a transcript before the next turn.
type delta struct {
	messages []Message // the turn, in the form that was rendered, and its results
	written  string    // the template's rendering with them
	ids      []int32
	text     string // what ids read as
	// forked says that the template rewrote history: ids are then the whole new
	// sequence and shared of them equal the old one's.
	forked bool
	shared int
}

// extend renders the conversation with the tool results added and works out
// which tokens that adds: those of the text that follows the turn. The turn is
// given to the template in each of its forms until one rendering keeps what
// stands before the turn and writes the turn itself as emitted, or the same
// calls in another notation. Where none does (a template that drops old
// thoughts, trims content, or ends turns with another mark than the one
// emitted) the whole is encoded anew and the trajectory forks, with the turn as
// it was emitted if the template takes that. The transcript itself is unchanged
// until apply.
func (t *transcript) extend(results []Message) (delta, error) {
	var fork *delta
	var refused error
	for _, form := range t.turn.forms(results) {
		messages := append([]Message{form}, results...)
		text, err := t.chat.Render(slices.Concat(t.messages, messages), t.tools, true)
		if err != nil {
			if refused == nil {
				refused = fmt.Errorf("template: %w", err)
			}
			continue
		}
		d := delta{messages: messages, written: text}
		if rest, ok := t.after(text, len(form.Calls) > 0); ok {
			d.text, d.ids = rest, t.chat.Encode(rest)
			return d, nil
		}
		if fork == nil || len(form.Calls) == 0 {
			fork = &d
		}
	}
	if fork == nil {
		return delta{}, refused
	}
	fork.text, fork.ids, fork.forked = fork.written, t.chat.Encode(fork.written), true
	fork.shared = commonPrefix(t.ids, fork.ids)
	return *fork, nil
}

// after gives what a rendering has after the turn; false when it does not
// continue the tokens the engine saw. structured says that the turn's calls were
// given to the template as such.
func (t *transcript) after(text string, structured bool) (rest string, ok bool) {
	turn := &t.turn
	rest, ok = strings.CutPrefix(text, t.written)
	if !ok {
		return "", false
	}
	if after, ok := strings.CutPrefix(rest, turn.content+turn.stop); ok {
		return after, true
	}
	if !structured || turn.stop == "" {
		return "", false
	}
	said, after, ok := strings.Cut(rest, turn.stop)
	return after, ok && turn.saysSame(said, ParseTurn(said, OpensThought(t.written), t.chat.Calls()))
}

// apply makes an extension part of the transcript.
func (t *transcript) apply(d delta) {
	t.messages = append(t.messages, d.messages...)
	t.written, t.turn = d.written, emittedTurn{}
	if d.forked {
		t.ids = d.ids
		return
	}
	t.ids = append(t.ids, d.ids...)
}
