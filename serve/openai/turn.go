package openai

import (
	"strings"

	"github.com/skein-rl/skein/rollout"
)

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// turnView reads what the model writes in one answer: thoughts, text and calls.
type turnView struct {
	tools     bool // calls are looked for only when tools were given
	inThought bool // the prompt opened a thought
}

// viewOf chooses how to read the answer to a rendered prompt.
func (h *Handler) viewOf(prompt string, tools bool) *turnView {
	return &turnView{tools: tools, inThought: strings.HasSuffix(strings.TrimRight(prompt, " \r\n"), thinkOpen)}
}

// parse splits a whole turn.
func (v *turnView) parse(text string) rollout.Parsed {
	return rollout.ParseTurn(text, v.inThought)
}

// message gives a whole turn. Text without thoughts and calls is passed on as it
// is. A malformed call is content, as it was written: the client sees what the
// model did.
func (v *turnView) message(text string) Message {
	m := Message{Role: "assistant"}
	parsed := v.parse(text)
	if len(parsed.Parts) == 1 && parsed.Parts[0].Kind == rollout.PartText || len(parsed.Parts) == 0 {
		m.Content = &text
		return m
	}
	var content strings.Builder
	at := 0
	for _, p := range parsed.Parts {
		raw := text[at:p.End]
		at = p.End
		switch {
		case p.Kind == rollout.PartReasoning:
			m.Reasoning += p.Text
		case p.Kind == rollout.PartCall && p.Err == nil:
			m.ToolCalls = append(m.ToolCalls, ToolCall{ID: callID(), Type: "function", Function: CalledAction{Name: p.Call.Name, Arguments: string(p.Call.Arguments)}})
		default:
			content.WriteString(raw)
		}
	}
	if s := strings.TrimSpace(content.String()); s != "" || len(m.ToolCalls) == 0 {
		m.Content = &s
	}
	return m
}

// turnFeed splits a turn as it comes. Text is passed on up to where a thought or
// a call may begin; thoughts as they come; calls once the turn is complete,
// since only then they are known to be well formed.
type turnFeed struct {
	v     *turnView
	text  string
	sent  int // bytes of text passed on or known to be calls
	state feedState
	calls int
}

type feedState uint8

const (
	inText feedState = iota
	inThought
	inCalls // until the end of the turn
)

func (v *turnView) feed() *turnFeed {
	f := &turnFeed{v: v}
	if v.inThought {
		f.state = inThought
	}
	return f
}

// push takes more text and gives what can be told of it.
func (f *turnFeed) push(text string, end bool) Message {
	f.text += text
	var m Message
	var content strings.Builder
	for f.step(&m, &content, end) {
	}
	if end {
		f.finish(&m, &content)
	}
	if content.Len() > 0 {
		m.Content = ptr(content.String())
	}
	return m
}

// step passes on what it can and reports whether the state changed.
func (f *turnFeed) step(m *Message, content *strings.Builder, end bool) bool {
	rest := f.text[f.sent:]
	switch f.state {
	case inThought:
		i, mark := firstOf(rest, []string{thinkClose}, end)
		m.Reasoning += rest[:i]
		f.sent += i + len(mark)
		if mark != "" {
			f.state = inText
			return true
		}
	case inText:
		marks := []string{thinkOpen}
		if f.v.tools {
			marks = append(marks, "<tool_call>")
		}
		i, mark := firstOf(rest, marks, end)
		content.WriteString(rest[:i])
		f.sent += i
		switch mark {
		case "":
		case thinkOpen:
			f.sent += len(mark)
			f.state = inThought
			return true
		default:
			f.state = inCalls
		}
	}
	return false
}

// finish reads the calls at the end of the turn.
func (f *turnFeed) finish(m *Message, content *strings.Builder) {
	if f.state != inCalls {
		return
	}
	tail := rollout.ParseTurn(f.text[f.sent:], false)
	at := 0
	for _, p := range tail.Parts {
		raw := f.text[f.sent+at : f.sent+p.End]
		at = p.End
		if p.Kind != rollout.PartCall || p.Err != nil {
			content.WriteString(raw)
			continue
		}
		i := f.calls
		f.calls++
		m.ToolCalls = append(m.ToolCalls, ToolCall{Index: &i, ID: callID(), Type: "function", Function: CalledAction{Name: p.Call.Name, Arguments: string(p.Call.Arguments)}})
	}
}

// firstOf finds the first of several marks: the index where it begins, and the
// mark. Without one, the index up to which no mark can begin any more: an end of
// s that begins a mark is held back unless nothing follows.
func firstOf(s string, marks []string, end bool) (int, string) {
	at, found := len(s), ""
	for _, m := range marks {
		if i := strings.Index(s, m); i >= 0 && i < at {
			at, found = i, m
		}
	}
	if found != "" || end {
		return at, found
	}
	for _, m := range marks {
		for n := min(len(m)-1, len(s)); n > 0; n-- {
			if strings.HasSuffix(s, m[:n]) {
				at = min(at, len(s)-n)
				break
			}
		}
	}
	return at, ""
}
