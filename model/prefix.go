package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// BreakKind says what a template does to a conversation it rendered before.
type BreakKind string

const (
	// BreakReasoning: thoughts of an earlier turn are dropped, moved or added.
	BreakReasoning BreakKind = "reasoning"
	// BreakSpace: white space of an earlier turn is trimmed or changed.
	BreakSpace BreakKind = "white space"
	// BreakOpening: the opening of the generated turn is written otherwise once
	// the turn is complete.
	BreakOpening BreakKind = "opening"
	// BreakEnd: the turn ends with another mark than the one generated.
	BreakEnd BreakKind = "turn end"
	// BreakPrompt: text before the generated turn moves or changes, such as
	// tools that follow the last user message.
	BreakPrompt BreakKind = "prompt"
	// BreakContent: what was generated is written otherwise.
	BreakContent BreakKind = "content"
	// BreakDate: the prompt holds the day's date; across midnight it changes.
	BreakDate BreakKind = "date"
	// BreakSeam: the text extends, but the tokenizer joins generated and later
	// text when it encodes the whole. Harmless to rollout, which encodes only
	// what is new; a learner that re-encodes would train on other tokens.
	BreakSeam BreakKind = "token seam"
)

// PrefixBreak is one place where a rendering does not extend the one before.
type PrefixBreak struct {
	Kind         BreakKind
	Conversation string // of those the report tries
	Message      int    // index of the message in which the texts part
	Role         string // of that message
	Seen         string // what the engine had there (excerpt)
	Rendered     string // what the template wrote instead (excerpt)
}

// String tells the break in one line.
func (b PrefixBreak) String() string {
	return fmt.Sprintf("%s: in conversation %q, message %d (%s): %q became %q", b.Kind, b.Conversation, b.Message, b.Role, b.Seen, b.Rendered)
}

// PrefixReport says whether a template only ever appends to what the engine has
// seen.
type PrefixReport struct {
	Checked int           // turns whose continuation was compared
	Breaks  []PrefixBreak // the first of its kind in each conversation
	Refused []string      // conversations the template refuses, with its reason
}

// Extends reports that no turn makes a rollout fork; dates and seams don't.
func (r PrefixReport) Extends() bool { return len(r.Forks()) == 0 }

// Forks lists the breaks at which a trajectory starts a new branch.
func (r PrefixReport) Forks() []PrefixBreak {
	return slices.DeleteFunc(slices.Clone(r.Breaks), func(b PrefixBreak) bool { return b.Kind == BreakDate || b.Kind == BreakSeam })
}

// CheckPrefixExtension renders conversations turn by turn as a rollout does and
// compares: the prompt with what was generated after it must be a prefix of the
// next prompt. What a turn says stands in Content as the model wrote it, thoughts
// and calls included. end is what the model ends a turn with (see TurnEnd). tok
// may be nil; then token seams are not looked for.
func CheckPrefixExtension(c *ChatTemplate, tok *Tokenizer, end string) PrefixReport {
	var r PrefixReport
	for _, conv := range prefixConversations() {
		breaks, checked, err := c.checkPrefix(conv, tok, end)
		r.Checked += checked
		for _, b := range breaks {
			if !slices.ContainsFunc(r.Breaks, func(o PrefixBreak) bool { return o.Kind == b.Kind && o.Conversation == b.Conversation }) {
				r.Breaks = append(r.Breaks, b)
			}
		}
		if err != nil {
			r.Refused = append(r.Refused, fmt.Sprintf("%s: %v", conv.name, err))
		}
	}
	if b, ok := c.checkDate(); ok {
		r.Breaks = append(r.Breaks, b)
	}
	return r
}

// checkDate renders one prompt on two days.
func (c *ChatTemplate) checkDate() (PrefixBreak, bool) {
	var texts [2]string
	for i := range texts {
		at := time.Date(2001+i, time.Month(1+i), 1+i, 0, 0, 0, 0, time.UTC)
		text, _, err := c.WithClock(func() time.Time { return at }).RenderWithTools([]Message{{Role: "user", Content: "Hi"}}, nil, true)
		if err != nil {
			return PrefixBreak{}, false
		}
		texts[i] = text
	}
	if texts[0] == texts[1] {
		return PrefixBreak{}, false
	}
	n := commonBytes(texts[0], texts[1])
	return PrefixBreak{Kind: BreakDate, Conversation: "date", Role: "system", Seen: excerpt(texts[0], n), Rendered: excerpt(texts[1], n)}, true
}

// CheckPrefix compares the renderings of one conversation, turn by turn.
func (c *ChatTemplate) CheckPrefix(messages []Message, tools []ToolDef, end string) ([]PrefixBreak, error) {
	breaks, _, err := c.checkPrefix(prefixConversation{"given", messages, tools}, nil, end)
	return breaks, err
}

func (c *ChatTemplate) checkPrefix(conv prefixConversation, tok *Tokenizer, end string) (breaks []PrefixBreak, checked int, err error) {
	for i, m := range conv.messages {
		if m.Role != "assistant" {
			continue
		}
		next := i + 1
		for next < len(conv.messages) && conv.messages[next].Role != "assistant" {
			next++
		}
		if next == i+1 {
			continue // nothing follows
		}
		prompt, _, err := c.RenderWithTools(conv.messages[:i], conv.tools, true)
		if err != nil {
			return breaks, checked, err
		}
		after, _, err := c.RenderWithTools(conv.messages[:next], conv.tools, true)
		if err != nil {
			return breaks, checked, err
		}
		checked++
		said := m.Content
		if open := openThought(prompt); open != "" {
			said = strings.TrimPrefix(said, open) // the prompt wrote it
		}
		seen := prompt + said + end
		if strings.HasPrefix(after, seen) {
			if tok != nil {
				breaks = append(breaks, seam(tok, conv.name, i, prompt, said+end, after)...)
			}
			continue
		}
		n := commonBytes(seen, after)
		b := PrefixBreak{Conversation: conv.name, Message: i, Role: "assistant", Seen: excerpt(seen, n), Rendered: excerpt(after, n)}
		switch {
		case n < len(prompt):
			b.Message, b.Role, b.Kind = c.locate(conv, i, n)
		case strings.TrimFunc(seen[n:], unicode.IsSpace) == "", sameButSpace(seen, after):
			b.Kind = BreakSpace
		case n < len(prompt)+len(said) && inThought(prompt+said, n), strings.HasPrefix(strings.TrimSpace(after[n:]), "<think>"):
			b.Kind = BreakReasoning
		case n >= len(prompt)+len(said):
			b.Kind = BreakEnd
		default:
			b.Kind = BreakContent
		}
		breaks = append(breaks, b)
	}
	return breaks, checked, nil
}

// locate finds the message before i whose text the byte at n of the prompt
// belongs to, and what kind of break a change there is.
func (c *ChatTemplate) locate(conv prefixConversation, i, n int) (message int, role string, kind BreakKind) {
	bare, _, err := c.RenderWithTools(conv.messages[:i], conv.tools, false)
	if err == nil && n >= len(bare) {
		return i, "assistant", BreakOpening
	}
	for k := 1; k <= i; k++ {
		part, _, err := c.RenderWithTools(conv.messages[:k], conv.tools, false)
		if err == nil && n < len(part) {
			if m := conv.messages[k-1]; m.Role == "assistant" && strings.Contains(m.Content, "<think>") {
				return k - 1, m.Role, BreakReasoning
			}
			return k - 1, conv.messages[k-1].Role, BreakPrompt
		}
	}
	return i, "assistant", BreakPrompt
}

// openThought is the thought mark that a prompt ends with, its line ends
// included.
func openThought(prompt string) string {
	if i := strings.LastIndex(prompt, "<think>"); i >= 0 && strings.TrimSpace(prompt[i+len("<think>"):]) == "" {
		return prompt[i:]
	}
	return ""
}

// inThought reports whether byte n of text lies in a <think> block, or at its
// start.
func inThought(text string, n int) bool {
	open := strings.LastIndex(text[:min(len(text), n+len("<think>"))], "<think>")
	return open >= 0 && !strings.Contains(text[open:n], "</think>")
}

func sameButSpace(seen, after string) bool {
	strip := func(s string) string { return strings.Join(strings.Fields(s), "") }
	return strings.HasPrefix(strip(after), strip(seen))
}

// seam compares the tokens a rollout has with those of the whole text.
func seam(tok *Tokenizer, conversation string, message int, prompt, said, after string) []PrefixBreak {
	have := slices.Concat(tok.Encode(prompt, true), tok.Encode(said, true), tok.Encode(after[len(prompt)+len(said):], true))
	whole := tok.Encode(after, true)
	if slices.Equal(have, whole) {
		return nil
	}
	n := 0
	for n < min(len(have), len(whole)) && have[n] == whole[n] {
		n++
	}
	return []PrefixBreak{{
		Kind: BreakSeam, Conversation: conversation, Message: message, Role: "assistant",
		Seen: tok.Decode(have[max(0, n-1):min(len(have), n+3)]), Rendered: tok.Decode(whole[max(0, n-1):min(len(whole), n+3)]),
	}}
}

func commonBytes(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// excerpt shows a text around a byte, cut at characters.
func excerpt(s string, n int) string {
	return strings.ToValidUTF8(s[max(0, n-20):min(len(s), n+40)], "")
}

// ErrNoTurnEnd marks a template that ends an assistant turn with nothing.
var ErrNoTurnEnd = errors.New("model: the chat template ends an assistant turn with no mark")

// TurnEnd is the mark that the template puts after what the assistant said,
// without the white space around it, and its id. With a tokenizer it is the first
// token there, which must be special or one of stops, the model's own
// end-of-sequence ids. Without one it is all that follows and the id is -1.
func TurnEnd(c *ChatTemplate, tok *Tokenizer, stops []int32) (mark string, id int32, err error) {
	const answer = "Yes, I am."
	text, err := c.Render([]Message{{Role: "user", Content: "Are you there?"}, {Role: "assistant", Content: answer}}, nil, false)
	if err != nil {
		return "", -1, err
	}
	i := strings.LastIndex(text, answer)
	if i < 0 {
		return "", -1, fmt.Errorf("%w: it does not show what the assistant said", ErrTemplate)
	}
	rest := strings.TrimSpace(text[i+len(answer):])
	if tok == nil && rest != "" {
		return rest, -1, nil
	}
	if tok != nil {
		if ids := tok.Encode(rest, true); len(ids) > 0 && (tok.IsSpecial(ids[0]) || slices.Contains(stops, ids[0])) {
			return tok.Decode(ids[:1]), ids[0], nil
		}
	}
	return "", -1, ErrNoTurnEnd
}
