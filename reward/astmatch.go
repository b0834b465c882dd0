package reward

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

	"github.com/skein-rl/skein/agent/tool"
)

// This file scores one function call against BFCL's possible answers (Patil et
// al., the Berkeley Function Calling Leaderboard, v4, category simple_python):
// right function, required parameters present, no unknown ones, every value of
// the right type and among the accepted ones. It gives the verdict of the
// leaderboard's Python checker on the same input, including its leniencies: an
// int passes for a float, a list for a tuple, strings compare without case and
// the characters " ,./-_*^", an empty string among the accepted values marks a
// parameter as optional, and a value of the accepted values' type passes for a
// variable. Where the Python checker would raise, the verdict is invalid.

// ASTReference is the truth of one single-call problem.
type ASTReference struct {
	// Function is BFCL's description: name, and parameters with properties
	// (type among string, integer, float, boolean, array, tuple, dict, any)
	// and required.
	Function ASTFunction `json:"function"`
	// Possible is BFCL's ground truth: {function name: {parameter: [accepted
	// values]}}.
	Possible map[string]map[string][]any `json:"possible"`
}

// ASTFunction is the part of a BFCL function description that is checked.
type ASTFunction struct {
	Name       string        `json:"name"`
	Parameters ASTParameters `json:"parameters"`
}

// ASTParameters lists a function's parameters.
type ASTParameters struct {
	Properties map[string]ASTProperty `json:"properties"`
	Required   []string               `json:"required"`
}

// ASTProperty is the type of one parameter; Items is used by array and tuple.
type ASTProperty struct {
	Type  string       `json:"type"`
	Items *ASTProperty `json:"items"`
}

// Mismatch says why a call does not match. Kind is a stable word for counting.
type Mismatch struct {
	Kind   string
	Detail string
}

func (m *Mismatch) Error() string { return "ast_match: " + m.Kind + ": " + m.Detail }

func mismatch(kind, format string, a ...any) *Mismatch {
	return &Mismatch{Kind: kind, Detail: fmt.Sprintf(format, a...)}
}

// pythonTypes maps BFCL's type names to Python's, as the reference does.
var pythonTypes = map[string]string{
	"string": "str", "integer": "int", "float": "float", "boolean": "bool",
	"array": "list", "tuple": "list", "dict": "dict", "any": "str",
}

// DecodeASTReference reads a reference and reports one that can never be
// scored: no function name, or not exactly one possible call.
func DecodeASTReference(data []byte) (*ASTReference, error) {
	var raw struct {
		Function ASTFunction                           `json:"function"`
		Possible map[string]map[string]json.RawMessage `json:"possible"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("ast_match: reference: %w", err)
	}
	ref := &ASTReference{Function: raw.Function, Possible: map[string]map[string][]any{}}
	if ref.Function.Name == "" {
		return nil, errors.New("ast_match: reference: function.name is empty")
	}
	if len(raw.Possible) != 1 {
		return nil, fmt.Errorf("ast_match: reference of %s: %d possible calls; need exactly one", ref.Function.Name, len(raw.Possible))
	}
	for name, params := range raw.Possible {
		ref.Possible[name] = map[string][]any{}
		for p, accepted := range params {
			v, err := pyDecode(accepted)
			if err != nil {
				return nil, fmt.Errorf("ast_match: reference of %s: parameter %s: %w", name, p, err)
			}
			list, ok := v.([]any)
			if !ok {
				return nil, fmt.Errorf("ast_match: reference of %s: parameter %s is %s; need a list of accepted values", name, p, pyType(v))
			}
			ref.Possible[name][p] = list
		}
	}
	return ref, nil
}

// Match returns nil when calls is exactly one call that the reference accepts,
// else a *Mismatch. Safe for concurrent use.
func (ref *ASTReference) Match(calls []tool.Call) error {
	if len(calls) != 1 {
		return mismatch("wrong_count", "%d calls; need exactly one", len(calls))
	}
	call := calls[0]
	if call.Name != ref.Function.Name {
		return mismatch("wrong_func_name", "called %q; need %q", call.Name, ref.Function.Name)
	}
	v, err := pyDecode(call.Arguments)
	if err != nil {
		return mismatch("arguments", "not JSON: %v", err)
	}
	args, ok := v.(map[string]any)
	if !ok {
		return mismatch("arguments", "%s instead of an object", pyType(v))
	}
	var possible map[string][]any
	for _, p := range ref.Possible {
		possible = p
	}
	for _, r := range ref.Function.Parameters.Required {
		if _, ok := args[r]; !ok {
			return mismatch("missing_required", "%s", r)
		}
	}
	for _, name := range sortedKeys(args) {
		prop, described := ref.Function.Parameters.Properties[name]
		accepted, expected := possible[name]
		if !described || !expected {
			return mismatch("unexpected_param", "%s", name)
		}
		if err := matchParam(name, args[name], accepted, prop); err != nil {
			return err
		}
	}
	for name, accepted := range possible {
		if _, given := args[name]; !given && !pyIn("", accepted) {
			return mismatch("missing_optional", "%s", name)
		}
	}
	return nil
}

func matchParam(name string, value any, accepted []any, prop ASTProperty) error {
	want, ok := pythonTypes[prop.Type]
	if !ok {
		return mismatch("reference", "%s has unknown type %q", name, prop.Type)
	}
	nested := ""
	if prop.Type == "array" || prop.Type == "tuple" {
		if prop.Items == nil || pythonTypes[prop.Items.Type] == "" {
			return mismatch("reference", "%s has no item type", name)
		}
		nested = pythonTypes[prop.Items.Type]
	}
	if n, isInt := value.(*big.Int); isInt && prop.Type == "float" {
		value, _ = new(big.Float).SetInt(n).Float64()
	}
	variable, err := matchType(name, value, accepted, want, nested)
	if err != nil {
		return err
	}
	if !variable {
		switch {
		case want == "dict":
			return matchDict(name, value, accepted)
		case want == "list" && nested == "dict":
			return matchDictList(name, value, accepted)
		case want == "str":
			return matchString(name, value, accepted)
		case want == "list":
			return matchList(name, value, accepted)
		}
	}
	if !pyIn(value, accepted) {
		return mismatch("value", "%s", name)
	}
	return nil
}

// acceptedType is the type of the first accepted value that is not the optional
// mark, "" when there is none.
func acceptedType(accepted []any) string {
	for _, a := range accepted {
		if s, isString := a.(string); !isString || s != "" {
			return pyType(a)
		}
	}
	return ""
}

// matchType reports whether the value has the wanted type, or else that of the
// accepted values: then it is taken for a variable. Nested types are checked
// one level deep.
func matchType(name string, value any, accepted []any, want, nested string) (variable bool, err error) {
	have := acceptedType(accepted)
	variable = have != "" && have != want
	if pyType(value) == want {
		if nested == "" {
			return variable, nil
		}
		items, ok := pySequence(value)
		if !ok {
			return false, mismatch("type", "%s", name)
		}
		for _, a := range accepted {
			list, isList := a.([]any)
			if !isList {
				return variable, nil // the reference checks no items against it
			}
			fits := true
			for _, item := range items {
				if _, err := matchType(name, item, list, nested, ""); err != nil {
					fits = false
					break
				}
			}
			if fits {
				return variable, nil
			}
		}
		return false, mismatch("nested_type", "%s: items are not %s", name, nested)
	}
	if have != "" && pyType(value) == have {
		return true, nil
	}
	return false, mismatch("type", "%s is %s; need %s", name, pyType(value), want)
}

// astScorer is Match as a Scorer: 1 for a match; else, to give learning a
// slope, 0.2 for exactly one call of the right function with every required
// parameter and no unknown one, 0.1 for exactly one call of the right function,
// 0 otherwise.
type astScorer struct{}

func (astScorer) Name() string { return "ast_match" }

func (astScorer) Score(s Sample) (float64, error) {
	ref, err := DecodeASTReference(s.Answer)
	if err != nil {
		return 0, err
	}
	return ref.Score(s.Calls), nil
}

// Score is the shaped score of astScorer for a decoded reference.
func (ref *ASTReference) Score(calls []tool.Call) float64 {
	err := ref.Match(calls)
	if err == nil {
		return 1
	}
	var m *Mismatch
	errors.As(err, &m)
	switch m.Kind {
	case "wrong_count", "wrong_func_name", "arguments":
		return 0
	case "missing_required", "unexpected_param":
		return 0.1
	}
	return 0.2
}
