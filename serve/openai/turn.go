package openai

import (
	"math"
	"strings"
	"unicode/utf8"

	"github.com/skein-rl/skein/rollout"
)

// Marks of a thought.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// turnView reads what the model writes in one answer: thoughts, text and calls.
type turnView struct {
	format    *rollout.CallFormat // nil when no tools were given: then nothing is a call
	inThought bool                // the prompt opened a thought
	hide      *hider              // of special tokens; nil = show them
}

// viewOf chooses how to read the answer to a rendered prompt.
func (h *Handler) viewOf(prompt string, tools, skip bool) *turnView {
	v := &turnView{inThought: rollout.OpensThought(prompt)}
	if tools {
		v.format = h.format
	}
	if skip {
		v.hide = &h.hide
	}
	return v
}

// message gives a whole turn. A malformed call is content, as it was written:
// the client sees what the model did.
func (v *turnView) message(text string, parallel bool) Message {
	f := v.feed(parallel)
	m := f.push(text, true)
	m.Role = "assistant"
	for i := range m.ToolCalls {
		m.ToolCalls[i].Index = nil // streaming only
	}
	if m.Content == nil && len(m.ToolCalls) == 0 {
		m.Content = ptr("")
	}
	return m
}

// turnFeed splits a turn as it comes. Text is passed on up to where a thought or
// a call may begin, thoughts as they come, calls once the turn is complete:
// only then they are known to be well formed.
type turnFeed struct {
	v     *turnView
	text  string
	sent  int // bytes of text that are dealt with
	state feedState
	after bool // a thought or a call came before: white space in between is dropped
	calls int
	most  int // calls passed on
}

type feedState uint8

const (
	inText feedState = iota
	inThought
	inCalls // until the end of the turn
)

// feed starts a turn. Without parallel only its first call is passed on, as in
// vLLM; the token ids tell of all.
func (v *turnView) feed(parallel bool) *turnFeed {
	f := &turnFeed{v: v, most: math.MaxInt}
	if !parallel {
		f.most = 1
	}
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
	if end && f.state == inCalls {
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
		i = f.whole(rest, i, mark, end)
		m.Reasoning += f.v.show(rest[:i])
		f.sent += i + len(mark)
		if mark != "" {
			f.state, f.after = inText, true
			return true
		}
	case inText:
		i, mark := firstOf(rest, []string{thinkOpen}, end)
		if f.v.format != nil {
			if at := f.v.format.Begins(rest); at >= 0 && at <= i {
				i, mark, f.state = at, "", inCalls
			} else if !end && mark == "" {
				i = min(i, max(0, len(rest)-longestMark))
			}
		}
		if f.state == inText {
			i = f.whole(rest, i, mark, end)
		}
		shown := f.v.show(rest[:i])
		if f.after {
			if shown = strings.TrimLeft(shown, " \r\n"); shown != "" {
				f.after = false
			}
		}
		content.WriteString(shown)
		f.sent += i + len(mark)
		if mark != "" {
			f.state = inThought
			return true
		}
	}
	return false
}

// whole moves an end that nothing marks back to where no character and no
// special token is cut in two.
func (f *turnFeed) whole(text string, i int, mark string, end bool) int {
	if mark != "" || end {
		return i
	}
	for i > 0 && i < len(text) && !utf8.RuneStart(text[i]) {
		i--
	}
	if f.v.hide != nil {
		i = f.v.hide.cut(text[:i])
	}
	return i
}

// longestMark is as many bytes as the opening of a call has at most: text is
// held back by that much while a call may begin.
const longestMark = 40

// finish reads the calls at the end of the turn.
func (f *turnFeed) finish(m *Message, content *strings.Builder) {
	tail := f.text[f.sent:]
	at := 0
	for _, p := range rollout.ParseTurn(tail, false, f.v.format).Parts {
		raw := tail[at:p.End]
		at = p.End
		switch {
		case p.Kind == rollout.PartReasoning:
			m.Reasoning += p.Text
		case p.Kind == rollout.PartCall && p.Err == nil:
			i := f.calls
			if i == f.most {
				continue
			}
			f.calls++
			m.ToolCalls = append(m.ToolCalls, ToolCall{Index: &i, ID: callID(), Type: "function", Function: CalledAction{Name: p.Call.Name, Arguments: string(p.Call.Arguments)}})
		default:
			content.WriteString(f.v.show(strings.TrimSpace(raw)))
		}
	}
}

// show gives text without special tokens, if they are to be hidden.
func (v *turnView) show(text string) string {
	if v.hide == nil {
		return text
	}
	return v.hide.all.Replace(text)
}

// hider takes the texts of special tokens out.
type hider struct {
	marks []string
	all   *strings.Replacer
}

func newHider(marks []string) hider {
	var pairs []string
	for _, m := range marks {
		pairs = append(pairs, m, "")
	}
	return hider{marks, strings.NewReplacer(pairs...)}
}

// cut is where an unfinished special token at the end of s begins; len(s)
// without one.
func (h *hider) cut(s string) int {
	const longest = 64
	for at := max(0, len(s)-longest); at < len(s); at++ {
		for _, m := range h.marks {
			if len(s)-at < len(m) && strings.HasPrefix(m, s[at:]) {
				return at
			}
		}
	}
	return len(s)
}

// hideStream hides special tokens in a text that comes in pieces.
type hideStream struct {
	h    *hider
	held string
}

func (s *hideStream) push(text string, end bool) string {
	text = s.held + text
	at := len(text)
	if !end {
		at = s.h.cut(text)
	}
	s.held = text[at:]
	return s.h.all.Replace(text[:at])
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
