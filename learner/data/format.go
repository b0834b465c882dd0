package data

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Formats: the column sets that are understood, named as TRL's dataset types.
// Wherever a column holds text it may hold a list of messages instead.
const (
	FormatText       = "text"                // text
	FormatMessages   = "messages"            // messages, optionally tools
	FormatPrompt     = "prompt"              // prompt
	FormatCompletion = "prompt_completion"   // prompt, completion
	FormatPreference = "preference"          // prompt, chosen, rejected
	FormatImplicit   = "implicit_preference" // chosen, rejected; their common beginning is the prompt
	FormatVerdict    = "unpaired_preference" // prompt, completion, label
	FormatSteps      = "stepwise"            // prompt, completions, labels: one verdict a step
)

// columns of each format; the first format whose columns are all there is the
// file's.
var formats = []struct {
	name    string
	columns []string
}{
	{FormatPreference, []string{"prompt", "chosen", "rejected"}},
	{FormatImplicit, []string{"chosen", "rejected"}},
	{FormatSteps, []string{"prompt", "completions", "labels"}},
	{FormatVerdict, []string{"prompt", "completion", "label"}},
	{FormatCompletion, []string{"prompt", "completion"}},
	{FormatMessages, []string{"messages"}},
	{FormatText, []string{"text"}},
	{FormatPrompt, []string{"prompt"}},
}

// optional columns of any format.
var optional = []string{"tools", "weight", "margin", "embedding"}

// Formats lists the names of the formats.
func Formats() []string {
	var out []string
	for _, f := range formats {
		out = append(out, f.name)
	}
	return out
}

func columnsOf(format string) []string {
	for _, f := range formats {
		if f.name == format {
			return f.columns
		}
	}
	return nil
}

// Want is what an algorithm trains on.
type Want string

// What algorithms train on.
const (
	WantDemonstrations Want = "demonstrations" // sft
	WantPairs          Want = "pairs"          // dpo, reward
	WantVerdicts       Want = "verdicts"       // kto, bco
	WantPrompts        Want = "prompts"        // algorithms that generate
)

// wanted lists the formats that serve each want.
var wanted = map[Want][]string{
	WantDemonstrations: {FormatText, FormatCompletion, FormatMessages, FormatSteps},
	WantPairs:          {FormatPreference, FormatImplicit},
	WantVerdicts:       {FormatVerdict, FormatPreference, FormatImplicit, FormatSteps},
	WantPrompts:        {FormatPrompt},
}

// ColumnsError says that a file's columns are not what is wanted.
type ColumnsError struct {
	Where  string
	Found  []string
	Format string // detected or asked for; "" when none fits
	Want   Want
}

func (e *ColumnsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: columns found: %s", e.Where, list(e.Found))
	if e.Format != "" {
		fmt.Fprintf(&b, ", read as %s", e.Format)
	}
	fmt.Fprintf(&b, "; %s want one of: ", e.Want)
	for i, f := range wanted[e.Want] {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s)", strings.Join(columnsOf(f), ", "), f)
	}
	b.WriteString(". Rename columns with data.columns (wanted: yours), or force a reading with data.format")
	return b.String()
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// detect chooses the format of a file from its first good row: the asked one,
// or the first that fits and is wanted, in the order of formats.
func detect(row raw, asked string, want Want) (string, error) {
	found := slices.Sorted(maps.Keys(row.columns))
	has := func(format string) bool {
		for _, c := range columnsOf(format) {
			if v, ok := row.columns[c]; !ok || isNull(v) {
				return false
			}
		}
		return true
	}
	if asked != "" {
		if !has(asked) || !slices.Contains(wanted[want], asked) {
			return "", &ColumnsError{row.where, found, asked, want}
		}
		return asked, nil
	}
	for _, f := range formats {
		if has(f.name) {
			if slices.Contains(wanted[want], f.name) || want == WantPrompts && slices.Contains(f.columns, "prompt") {
				if want == WantPrompts {
					return FormatPrompt, nil // the rest of the columns is for rewards
				}
				return f.name, nil
			}
			return "", &ColumnsError{row.where, found, f.name, want}
		}
	}
	return "", &ColumnsError{row.where, found, "", want}
}

func isNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }
