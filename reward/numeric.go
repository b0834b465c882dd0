package reward

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strings"
)

// numeral: a decimal number that may carry a sign, thousands commas and a
// fraction. A digit run with stray commas does not match as one number.
var numeral = regexp.MustCompile(`[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-+]?\.\d+`)

// ParseNumber reads one number, exactly, out of a whole string: "1,234.50",
// "$18", "75%" (the sign of a unit is dropped, not applied) and "12." are
// numbers; a string with anything else in it is not.
func ParseNumber(s string) (*big.Rat, bool) {
	s = strings.TrimSpace(s)
	s = strings.TrimSuffix(strings.TrimSuffix(s, "."), "%")
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(strings.TrimPrefix(s, "-"), "$")
	if loc := numeral.FindStringIndex(s); loc == nil || loc[0] != 0 || loc[1] != len(s) || (neg && strings.ContainsAny(s[:1], "+-")) {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(s, ",", ""))
	if !ok {
		return nil, false
	}
	if neg {
		r.Neg(r)
	}
	return r, true
}

// OnlyNumber returns the number a text states, provided that it states exactly
// one: a text that lists several candidates has not answered.
func OnlyNumber(text string) (*big.Rat, bool) {
	found := numeral.FindAllStringIndex(text, -1)
	if len(found) != 1 {
		return nil, false
	}
	return ParseNumber(text[found[0][0]:found[0][1]])
}

// MarkedNumber returns the number after the last "####", GSM8K's answer mark.
func MarkedNumber(text string) (*big.Rat, bool) {
	i := strings.LastIndex(text, "####")
	if i < 0 {
		return nil, false
	}
	line, _, _ := strings.Cut(strings.TrimLeft(text[i+len("####"):], " \t"), "\n")
	return ParseNumber(line)
}

// numericScorer gives 1 when the final text's answer equals the reference
// exactly and 0 otherwise. The answer is the number after "####" when the mark
// is there, else the only number of the text.
type numericScorer struct{}

func (numericScorer) Name() string { return "numeric_match" }

func (numericScorer) Score(s Sample) (float64, error) {
	var text string
	if json.Unmarshal(s.Answer, &text) != nil {
		text = string(s.Answer)
	}
	want, ok := ParseNumber(text)
	if !ok {
		return 0, fmt.Errorf("numeric_match: reference answer %q is not a number", text)
	}
	got, ok := OnlyNumber(s.Final)
	if strings.Contains(s.Final, "####") {
		got, ok = MarkedNumber(s.Final)
	}
	if ok && got.Cmp(want) == 0 {
		return 1, nil
	}
	return 0, nil
}
