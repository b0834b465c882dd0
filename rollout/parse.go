package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
		end, found := thoughtEnd(text, 0)
		add(Part{Kind: PartReasoning, End: end, Text: trimThought(text[:end])})
		p.Open = !found
	}
	for pos < len(text) {
		use := format
		call, body := format.find(text, pos)
		if other, otherBody := hermesCalls.find(text, pos); other >= 0 && (call < 0 || other < call) {
			use, call, body = hermesCalls, other, otherBody
		}
		next, thinks := len(text), false
		if call >= 0 {
			next = call
		}
		if i := strings.Index(text[pos:], thinkOpen); i >= 0 && pos+i < next {
			next, thinks = pos+i, true
		}
		if next > pos {
			add(Part{Kind: PartText, End: next, Text: strings.TrimSpace(text[pos:next])})
			continue
		}
		if thinks {
			end, found := thoughtEnd(text, pos+len(thinkOpen))
			add(Part{Kind: PartReasoning, End: end, Text: trimThought(text[pos:end])})
			p.Open = !found
			continue
		}
		calls, end, open := use.read(text, body)
		p.Open = open
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

// OpensThought reports whether a rendered prompt ends inside a thought that the
// template opened.
func OpensThought(prompt string) bool {
	return strings.HasSuffix(strings.TrimRight(prompt, " \r\n"), thinkOpen)
}

func thoughtEnd(text string, from int) (end int, found bool) {
	if i := strings.Index(text[from:], thinkClose); i >= 0 {
		return from + i + len(thinkClose), true
	}
	return len(text), false
}

func trimThought(s string) string {
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(s, thinkOpen), thinkClose))
}

// jsonCalls reads the JSON body of a call that begins at from. closing ends it;
// "" stands for nothing. end is the offset after the closing mark, or where the
// next call begins when that is missing; open means the text ended before the
// JSON value did.
func jsonCalls(text string, from int, opening, closing string) (calls []Part, end int, open bool) {
	return jsonBody(text, from, opening, closing, readCalls)
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
	end = len(text)
	closed := false
	if closing != "" {
		if i := strings.Index(text[from:], closing); i >= 0 {
			end, closed = from+i+len(closing), true
		}
	}
	if i := strings.Index(text[from:end], opening); i >= 0 {
		end, closed = from+i, true
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		open = !closed
		err = errors.New("unexpected end of JSON")
	}
	return []Part{{Err: err}}, end, open
}

// malformed is a call that could not be read.
func malformed(why string) []Part { return []Part{{Err: errors.New(why)}} }

// callOf is a call from its name and the text of its arguments.
func callOf(name, args string) Part {
	quoted, err := json.Marshal(name)
	if err != nil || name == "" {
		return Part{Err: errors.New("name is missing")}
	}
	if args = strings.TrimSpace(args); args == "" {
		args = "{}"
	}
	if !json.Valid([]byte(args)) {
		return Part{Call: tool.Call{Name: name}, Err: errors.New("arguments are not JSON")}
	}
	return readCall(json.RawMessage(`{"name":` + string(quoted) + `,"arguments":` + args + `}`))
}

// readCalls turns a decoded body into one call, or several when it is a list.
func readCalls(value json.RawMessage) []Part {
	if value[0] != '[' {
		return []Part{readCall(value)}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 {
		return []Part{{Err: errors.New("an empty list of calls")}}
	}
	parts := make([]Part, len(list))
	for i, v := range list {
		parts[i] = readCall(v)
	}
	return parts
}

func readCall(value json.RawMessage) Part {
	var raw struct {
		Name       *string         `json:"name"`
		Arguments  json.RawMessage `json:"arguments"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if value[0] != '{' {
		return Part{Err: errors.New("a call is a JSON object")}
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return Part{Err: err}
	}
	if raw.Name == nil || *raw.Name == "" {
		return Part{Err: errors.New("name is missing")}
	}
	args := raw.Arguments
	if args == nil {
		args = raw.Parameters
	} else if raw.Parameters != nil {
		return Part{Call: tool.Call{Name: *raw.Name}, Err: errors.New("both arguments and parameters are given")}
	}
	if args == nil {
		args = json.RawMessage("{}")
	}
	if args[0] == '"' {
		var inner string
		if json.Unmarshal(args, &inner) == nil {
			args = json.RawMessage(strings.TrimSpace(inner))
		}
	}
	part := Part{Call: tool.Call{Name: *raw.Name, Arguments: args}}
	var compact bytes.Buffer
	if err := json.Compact(&compact, args); err != nil {
		part.Err = fmt.Errorf("arguments: %w", err)
	} else if part.Call.Arguments = compact.Bytes(); compact.Bytes()[0] != '{' {
		part.Err = errors.New("arguments must be an object")
	}
	if part.Err != nil {
		part.Call.Arguments = nil
	}
	return part
}

// FormatCalls writes calls the way ParseTurn reads them, without a blank: what
// a demonstration for a small vocabulary teaches.
func FormatCalls(calls []tool.Call) string {
	return formatCalls(calls, callOpen+`{"name":%s,"arguments":%s}`+callClose, "", false)
}

// FormatCallsSpaced writes calls with the blanks and line ends that models
// trained on the Hermes convention are used to.
func FormatCallsSpaced(calls []tool.Call) string {
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
