package grammar

import (
	"encoding/json"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// Call says how calls are written around their JSON: Open begins one and Close
// ends it; the JSON is an object of Name (the tool's) and Arguments. Hermes is
// the most common form.
type Call struct {
	Open, Close     string
	Name, Arguments string // keys of the JSON object
	Space           string // what must stand between the marks and the JSON
	List            bool   // the JSON is a list of such objects
}

var (
	// Hermes is <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>, as
	// Qwen, Hermes and SmolLM write it.
	Hermes = Call{Open: "<tool_call>", Close: "</tool_call>", Name: "name", Arguments: "arguments", Space: "\n"}
	// Mistral is [TOOL_CALLS][{"name": …, "arguments": {…}}].
	Mistral = Call{Open: "[TOOL_CALLS]", Name: "name", Arguments: "arguments", List: true}
	// Llama is <|python_tag|>{"name": …, "parameters": {…}}.
	Llama = Call{Open: "<|python_tag|>", Name: "name", Arguments: "parameters"}
)

// ToolCalls compiles free text in which every call is one of the given tools
// with arguments that fit its schema. required asks for at least one call and
// for no text outside calls but white space; parallel allows several.
func ToolCalls(tools []model.ToolDef, call Call, required, parallel bool, o SchemaOptions) (*Grammar, error) {
	switch {
	case len(tools) == 0:
		return nil, fmt.Errorf("%w: no tools are given", ErrGrammar)
	case call.Open == "" || call.Name == "" || call.Arguments == "":
		return nil, fmt.Errorf("%w: Open, Name and Arguments of the call form must be set", ErrGrammar)
	}
	j := &jsonRules{compact: o.Compact, made: map[string]ref{}}
	root := j.add("root")
	var choices alt
	for _, t := range tools {
		args := j.object(nil, nil)
		if len(t.Parameters) > 0 {
			e, err := j.schema(t.Parameters, o)
			if err != nil {
				return nil, fmt.Errorf("tool %s: %w", t.Name, err)
			}
			args = e
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", t.Name, err)
		}
		// The name comes first: a model decides on the tool, then fills it in.
		choices = append(choices, seq{literal("{"), j.space(), literal(quoted(call.Name)[0]), j.space(), literal(":"), j.space(), literal(name),
			j.comma(), literal(quoted(call.Arguments)[0]), j.space(), literal(":"), j.space(), args, j.space(), literal("}")})
	}
	one := j.add("call")
	j.bodies[one] = choices
	body := expr(one)
	if call.List {
		most := 1
		if parallel {
			most = unlimited
		}
		body = j.list(nil, one, 1, most)
	}
	gap := expr(literal(call.Space))
	if call.Space == "\n" {
		gap = opt(literal("\n"))
	}
	whole := seq{gap, body, gap, literal(call.Close)}
	marked := seq{literal(call.Open), whole}
	blank := opt(literal("\n"))
	switch {
	case required && parallel && !call.List:
		j.bodies[root] = seq{marked, rep{seq{blank, marked}, 0, unlimited}}
	case required:
		j.bodies[root] = marked
	default:
		found := seq{freeText{call.Open, true}, whole}
		if parallel && !call.List {
			found = append(found, rep{seq{blank, marked}, 0, unlimited})
		}
		j.bodies[root] = alt{freeText{call.Open, false}, found}
	}
	return j.compile()
}
