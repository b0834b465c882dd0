package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// Marks of the Hermes convention, which Qwen, SmolLM and most small
// tool-calling models write.
const (
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// PartKind says what a piece of an assistant turn is.
type PartKind uint8

const (
	PartText PartKind = iota
	PartReasoning
	PartCall
)

// Part is one piece of an assistant turn. The parts of a turn lie end to end
// and cover its text.
type Part struct {
	Kind PartKind
	// End is the byte offset in the turn's text where the part ends
	// (exclusive), marks included; it begins where the one before it ends.
	End int
	// Text is the content without marks and outer blanks. For a call: its body.
	Text string
	// Call is set when Kind is PartCall. Its ID is empty; the loop gives one.
	Call tool.Call
	// Err says why the call is malformed; the call must not be executed.
	Err error
}

// Parsed is an assistant turn in parts.
type Parsed struct {
	Parts []Part
	// Open says that the text ends inside a call or a thought: a turn cut by a
	// limit. Its last part must not be acted on.
	Open bool
}

// Calls counts the calls of the turn, malformed ones included.
func (p Parsed) Calls() int {
	n := 0
	for _, part := range p.Parts {
		if part.Kind == PartCall {
			n++
		}
	}
	return n
}

// Text joins the text parts: what the turn says to the user.
func (p Parsed) Text() string {
	var texts []string
	for _, part := range p.Parts {
		if part.Kind == PartText && part.Text != "" {
			texts = append(texts, part.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// ParseTurn splits what a model wrote into text, reasoning (<think>…</think>)
// and calls, several per turn, in the given format; Hermes marks are understood
// beside any other. inThought says that the prompt already opened a thought.
//
// It is lenient only where one reading exists: blanks around JSON, arguments as
// a string that holds a JSON object, "parameters" for "arguments", arguments
// left out for {}, a missing closing mark after a complete call, a body that
// itself contains the closing mark inside a JSON string. Everything else that
// is marked as a call is a malformed call, reported in place; the calls after
// it still count. Marks inside a thought are thought.
func ParseTurn(text string, inThought bool, format *CallFormat) Parsed {
	var p Parsed
	pos := 0
	add := func(part Part) {
		p.Parts = append(p.Parts, part)
		pos = part.End
	}
	if inThought {
		marks := hermesThought
		if own := format.thought[1]; own != "" && strings.Contains(text, own) && !strings.Contains(text[:strings.Index(text, own)], thinkClose) {
			marks = format.thought
		}
		end, found := markEnd(text, 0, marks[1])
		add(Part{Kind: PartReasoning, End: end, Text: trimThought(text[:end], marks)})
		p.Open = !found
	}
	own, hermes := ahead{find: format.find, local: format.local}, ahead{find: hermesCalls.find}
	thoughts := []ahead{{find: findMark(thinkOpen)}}
	thoughtMarks := [][2]string{hermesThought}
	if format.thought[0] != "" {
		thoughts, thoughtMarks = append(thoughts, ahead{find: findMark(format.thought[0])}), append(thoughtMarks, format.thought)
	}
	for pos < len(text) {
		use := format
		call, body := own.next(text, pos)
		if other, otherBody := hermes.next(text, pos); other >= 0 && (call < 0 || other < call) {
			use, call, body = hermesCalls, other, otherBody
		}
		next, thought := len(text), [2]string{}
		if call >= 0 {
			next = call
		}
		for i := range thoughts {
			if at, _ := thoughts[i].next(text, pos); at >= 0 && (at < next || at == next && thought[0] == "") {
				next, thought = at, thoughtMarks[i]
			}
		}
		if next > pos {
			part := Part{Kind: PartText, End: next, Text: strings.TrimSpace(text[pos:next])}
			if format.plain != nil {
				part.Text = format.plain(part.Text)
			}
			add(part)
			continue
		}
		if thought[0] != "" {
			end, found := markEnd(text, pos+len(thought[0]), thought[1])
			add(Part{Kind: PartReasoning, End: end, Text: trimThought(text[pos:end], thought)})
			p.Open = !found
			continue
		}
		calls, end, open := use.read(text, body)
		p.Open = open
		if len(calls) == 0 { // marked as a call that says it is none
			add(Part{Kind: PartText, End: end})
			continue
		}
		for i := range calls {
			calls[i].Kind = PartCall
			calls[i].End = end
			if i < len(calls)-1 {
				calls[i].End = pos // a list shares its marks: they go to its last call
			}
			calls[i].Text = strings.TrimSpace(strings.TrimSuffix(text[body:end], callClose))
			p.Parts = append(p.Parts, calls[i])
		}
		pos = end
	}
	return p
}

// ahead remembers where something stands next, so that it is looked for again
// only once that is passed: a text of nothing but marks is read in linear time.
type ahead struct {
	find     func(text string, from int) (at, body int)
	local    bool // what is found depends on where the search begins
	known    bool
	at, body int
}

func (a *ahead) next(text string, pos int) (at, body int) {
	if a.local || !a.known || a.at >= 0 && a.at < pos {
		a.at, a.body = a.find(text, pos)
		a.known = true
	}
	return a.at, a.body
}

// OpensThought reports whether a rendered prompt ends inside a thought that the
// template opened, by the marks of any format.
func OpensThought(prompt string) bool {
	prompt = strings.TrimRight(prompt, " \r\n")
	return strings.HasSuffix(prompt, thinkOpen) || slices.ContainsFunc(callFormats, func(f *CallFormat) bool {
		return f.thought[0] != "" && strings.HasSuffix(prompt, f.thought[0])
	})
}

// hermesThought are the marks of a thought that every format has.
var hermesThought = [2]string{thinkOpen, thinkClose}

func markEnd(text string, from int, mark string) (end int, found bool) {
	if i := strings.Index(text[from:], mark); i >= 0 {
		return from + i + len(mark), true
	}
	return len(text), false
}

func trimThought(s string, marks [2]string) string {
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(s, marks[0]), marks[1]))
}

// jsonCalls reads the JSON body of a call that begins at from. closing ends it;
// "" stands for nothing. end is the offset after the closing mark, or where the
// next call begins when that is missing; open means the text ended before the
// JSON value did.
func jsonCalls(text string, from int, opening, closing string) (calls []Part, end int, open bool) {
	return jsonBody(text, from, opening, closing, usualKeys.calls)
}

// namedCall reads the JSON arguments of a call whose name stands before them.
func namedCall(name, text string, from int, opening, closing string) (calls []Part, end int, open bool) {
	return jsonBody(text, from, opening, closing, func(v json.RawMessage) []Part { return []Part{callOf(name, string(v))} })
}

func jsonBody(text string, from int, opening, closing string, read func(json.RawMessage) []Part) (calls []Part, end int, open bool) {
	dec := json.NewDecoder(strings.NewReader(text[from:]))
	var value json.RawMessage
	err := dec.Decode(&value)
	if err == nil {
		after := from + int(dec.InputOffset())
		rest := strings.TrimLeft(text[after:], " \t\r\n")
		blank := len(text) - len(rest)
		switch {
		case closing == "":
			return read(value), after, false
		case strings.HasPrefix(rest, closing):
			return read(value), blank + len(closing), false
		case rest == "" || strings.HasPrefix(rest, opening):
			return read(value), blank, false
		}
		if closing == ";" { // it only parts calls: what follows is text
			return read(value), after, false
		}
		err = errors.New("data after the JSON value")
	}
	_, end, open = within(text, from, closing, opening)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("unexpected end of JSON")
	} else {
		open = false
	}
	return []Part{{Err: err}}, end, open
}

// FormatCalls writes calls in Hermes marks without a blank: what a demonstration
// for a small vocabulary teaches. Other demonstrations leave calls to the chat's
// template (Message.Calls).
func FormatCalls(calls []tool.Call) string {
	return formatCalls(calls, callOpen+`{"name":%s,"arguments":%s}`+callClose, "", false)
}

// formatCallsSpaced writes calls with the blanks and line ends that models
// trained on the Hermes convention are used to.
func formatCallsSpaced(calls []tool.Call) string {
	return formatCalls(calls, callOpen+"\n"+`{"name": %s, "arguments": %s}`+"\n"+callClose, "\n", true)
}

func formatCalls(calls []tool.Call, format, between string, spaced bool) string {
	out := make([]string, len(calls))
	for i, c := range calls {
		name, _ := json.Marshal(c.Name)
		args := c.Arguments
		if len(args) == 0 {
			args = json.RawMessage("{}")
		}
		if spaced {
			args = spaceJSON(args)
		}
		out[i] = fmt.Sprintf(format, name, args)
	}
	return strings.Join(out, between)
}

// spaceJSON puts a blank after the colons and commas of compact JSON, as
// Python's json.dumps does.
func spaceJSON(data []byte) []byte {
	var compact bytes.Buffer
	if json.Compact(&compact, data) != nil {
		return data
	}
	var out []byte
	quoted := false
	for i, c := range compact.Bytes() {
		out = append(out, c)
		switch {
		case c == '"' && !escaped(compact.Bytes()[:i]):
			quoted = !quoted
		case !quoted && (c == ':' || c == ','):
			out = append(out, ' ')
		}
	}
	return out
}

// escaped says whether a byte after before is escaped: an odd number of
// backslashes precedes it.
func escaped(before []byte) bool {
	n := len(before) - len(bytes.TrimRight(before, "\\"))
	return n%2 == 1
}
