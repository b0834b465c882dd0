package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"
)

// record is one row, read but not yet tokenised.
type record struct {
	where            string
	format           string
	prompt           side
	chosen, rejected side // chosen is the completion of formats with one
	steps            []string
	labels           []bool // one; or one a step
	tools            []Tool
	weight, margin   float64
	difficulty       float64
	embedding        []float64
}

// parse reads a row in a format. curriculum names the column of its difficulty,
// "" for none.
func parse(row raw, format, curriculum string) (r record, err error) {
	r = record{where: row.where, format: format, weight: 1}
	defer func() {
		if err == nil {
			err = r.check()
		}
	}()
	if r.tools, err = parseTools(row.columns["tools"]); err != nil {
		return r, err
	}
	for _, n := range []struct {
		column string
		dst    *float64
		must   bool
	}{{"weight", &r.weight, false}, {"margin", &r.margin, false}, {curriculum, &r.difficulty, curriculum != ""}} {
		if err := number(row, n.column, n.dst, n.must); err != nil {
			return r, err
		}
	}
	if v := row.columns["embedding"]; !isNull(v) {
		if err := json.Unmarshal(v, &r.embedding); err != nil || len(r.embedding) == 0 {
			return r, fmt.Errorf("column \"embedding\" is %.40s; want a list of numbers", v)
		}
	}
	get := func(column string) (s side) {
		if err == nil {
			s, err = parseSide(column, row.columns[column])
		}
		return s
	}
	switch format {
	case FormatText:
		r.chosen = get("text")
	case FormatMessages:
		r.chosen = get("messages")
	case FormatPrompt:
		r.prompt = get("prompt")
	case FormatCompletion:
		r.prompt, r.chosen = get("prompt"), get("completion")
	case FormatVerdict:
		r.prompt, r.chosen = get("prompt"), get("completion")
		if err == nil {
			var b bool
			b, err = verdict("label", row.columns["label"])
			r.labels = []bool{b}
		}
	case FormatPreference:
		r.prompt, r.chosen, r.rejected = get("prompt"), get("chosen"), get("rejected")
	case FormatImplicit:
		r.chosen, r.rejected = get("chosen"), get("rejected")
		if err == nil {
			err = r.split()
		}
	case FormatSteps:
		r.prompt = get("prompt")
		if err == nil {
			err = r.readSteps(row)
		}
	}
	return r, err
}

// number reads a numeric column into dst; absent leaves it.
func number(row raw, column string, dst *float64, must bool) error {
	v, ok := row.columns[column]
	if !ok || isNull(v) {
		if must {
			return fmt.Errorf("column %q is missing or null; the curriculum needs a number there", column)
		}
		return nil
	}
	if err := json.Unmarshal(v, dst); err != nil || math.IsInf(*dst, 0) {
		return fmt.Errorf("column %q is %.40s; want a finite number", column, v)
	}
	return nil
}

// verdict reads a label: true or false, or 1 or 0.
func verdict(column string, v json.RawMessage) (bool, error) {
	switch string(v) {
	case "true", "1", "1.0":
		return true, nil
	case "false", "0", "0.0":
		return false, nil
	}
	return false, fmt.Errorf("column %q is %.40s; want true or false", column, v)
}

func (r *record) readSteps(row raw) error {
	if err := json.Unmarshal(row.columns["completions"], &r.steps); err != nil {
		return fmt.Errorf("column \"completions\": want a list of texts: %w", err)
	}
	var labels []json.RawMessage
	if err := json.Unmarshal(row.columns["labels"], &labels); err != nil {
		return fmt.Errorf("column \"labels\": want a list of true and false: %w", err)
	}
	if len(labels) != len(r.steps) || len(labels) == 0 {
		return fmt.Errorf("columns \"completions\" and \"labels\" have %d and %d entries; want one label for each of at least one step", len(r.steps), len(labels))
	}
	for i, v := range labels {
		b, err := verdict(fmt.Sprintf("labels[%d]", i), v)
		if err != nil {
			return err
		}
		if r.steps[i] == "" {
			return fmt.Errorf("completions[%d] is empty", i)
		}
		r.labels = append(r.labels, b)
	}
	return nil
}

// split takes the common beginning of both completions as the prompt: whole
// messages, or text up to the last blank before the difference, so that no word
// is cut.
func (r *record) split() error {
	if r.chosen.chat() != r.rejected.chat() {
		return errors.New(`column "chosen" and column "rejected" are of two kinds; want text in both or messages in both`)
	}
	if r.chosen.chat() {
		a, b := r.chosen.messages, r.rejected.messages
		n := 0
		for n < len(a) && n < len(b) && reflect.DeepEqual(a[n], b[n]) {
			n++
		}
		if n == 0 || n == len(a) || n == len(b) {
			return fmt.Errorf("chosen and rejected share their first %d of %d and %d messages; want a common prompt and then two answers", n, len(a), len(b))
		}
		r.prompt, r.chosen.messages, r.rejected.messages = side{messages: a[:n]}, a[n:], b[n:]
		return nil
	}
	a, b := r.chosen.text, r.rejected.text
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if i := strings.LastIndexAny(a[:n], " \n\t"); i >= 0 {
		n = i // the blank begins the completions
	} else {
		n = 0
	}
	for n > 0 && !utf8.RuneStart(a[n]) {
		n--
	}
	if n == 0 {
		return errors.New("chosen and rejected have no common beginning to take as the prompt; give a column \"prompt\"")
	}
	r.prompt, r.chosen.text, r.rejected.text = side{text: a[:n]}, a[n:], b[n:]
	return nil
}

// check refuses what no algorithm can train.
func (r *record) check() error {
	switch {
	case !(r.weight > 0):
		return fmt.Errorf("column \"weight\" is %v; want a number > 0 (leave a row out rather than weigh it 0)", r.weight)
	case !(r.margin >= 0):
		return fmt.Errorf("column \"margin\" is %v; want a number >= 0", r.margin)
	}
	type named struct {
		name string
		side
	}
	var has []named
	switch r.format {
	case FormatPreference, FormatImplicit:
		has = []named{{"prompt", r.prompt}, {"chosen", r.chosen}, {"rejected", r.rejected}}
	case FormatCompletion, FormatVerdict:
		has = []named{{"prompt", r.prompt}, {"completion", r.chosen}}
	case FormatSteps, FormatPrompt:
		has = []named{{"prompt", r.prompt}}
	case FormatMessages:
		if !r.chosen.chat() {
			return errors.New(`column "messages" is text; want a list of messages`)
		}
		has = []named{{"messages", r.chosen}}
	default:
		has = []named{{r.format, r.chosen}}
	}
	for _, s := range has {
		if !s.chat() && s.text == "" {
			return fmt.Errorf("column %q is empty", s.name)
		}
		if s.chat() != has[0].chat() {
			return fmt.Errorf("column %q and column %q are of two kinds; want text in all or messages in all", has[0].name, s.name)
		}
	}
	if r.format == FormatSteps && r.prompt.chat() {
		return errors.New(`column "prompt" is a conversation; stepwise rows want text`)
	}
	if (r.format == FormatPreference || r.format == FormatImplicit) && reflect.DeepEqual(r.chosen, r.rejected) {
		return errors.New("chosen and rejected are equal; there is nothing to prefer")
	}
	return nil
}
