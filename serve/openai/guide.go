package openai

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/grammar"
)

// guideFunc starts a constraint for one choice; nil = free.
type guideFunc = func() (model.Constraint, error)

// programs keeps compiled grammars: their token masks are computed as they are
// used, so that the second request with a schema is cheaper than the first.
type programs struct {
	vocab   *grammar.Vocabulary
	noVocab error // why there is none: then the model answers freely only

	mu    sync.Mutex
	made  map[[32]byte]*grammar.Program
	order [][32]byte // oldest first
}

// maxPrograms bounds the memory that clients' schemas can hold.
const maxPrograms = 64

func (p *programs) get(key []byte, compile func() (*grammar.Grammar, error)) (*grammar.Program, error) {
	sum := sha256.Sum256(key)
	p.mu.Lock()
	made := p.made[sum]
	p.mu.Unlock()
	if made != nil {
		return made, nil
	}
	if p.noVocab != nil {
		return nil, p.noVocab
	}
	g, err := compile() // a slow one keeps no other waiting
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if made := p.made[sum]; made != nil {
		return made, nil
	}
	if len(p.order) == maxPrograms {
		delete(p.made, p.order[0])
		p.order = p.order[1:]
	}
	made = grammar.NewProgram(g, p.vocab)
	p.made[sum], p.order = made, append(p.order, sum)
	return made, nil
}

// guide makes the constraint of a grammar; its key names it among all.
func (h *Handler) guide(param string, key any, compile func() (*grammar.Grammar, error)) (guideFunc, error) {
	name, err := json.Marshal([]any{param, key})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", param, err)
	}
	p, err := h.programs.get(name, compile)
	if err != nil {
		return nil, badRequest(param, "%s: %v", param, err)
	}
	return func() (model.Constraint, error) { return p.Start() }, nil
}

// guideOf compiles vLLM's structured output.
func (h *Handler) guideOf(s *Structured) (guideFunc, error) {
	switch {
	case s == nil:
		return nil, nil
	case s.JSONObject:
		return h.schemaGuide("structured_outputs.json_object", anyObject)
	case s.Regex != "":
		return h.guide("structured_outputs.regex", s.Regex, func() (*grammar.Grammar, error) { return grammar.Regex(s.Regex) })
	case len(s.Choice) > 0:
		return h.guide("structured_outputs.choice", s.Choice, func() (*grammar.Grammar, error) { return grammar.Choice(s.Choice...) })
	case s.Grammar != "":
		return h.guide("structured_outputs.grammar", s.Grammar, func() (*grammar.Grammar, error) { return grammar.EBNF(s.Grammar) })
	}
	return h.schemaGuide("structured_outputs.json", s.JSON)
}

var anyObject = json.RawMessage(`{"type": "object"}`)

// schemaGuide compiles a schema; vLLM also takes it as JSON in a string.
func (h *Handler) schemaGuide(param string, schema json.RawMessage) (guideFunc, error) {
	var text string
	if json.Unmarshal(schema, &text) == nil {
		schema = json.RawMessage(text)
	}
	return h.guide(param, string(schema), func() (*grammar.Grammar, error) {
		return grammar.Schema(schema, grammar.SchemaOptions{})
	})
}

// chatGuide chooses the one constraint of a chat request.
func (h *Handler) chatGuide(req *ChatRequest, p params, mode, name string, v *turnView) (guideFunc, error) {
	format := ""
	if req.ResponseFormat != nil {
		format = req.ResponseFormat.Type
	}
	strict := false
	for _, t := range req.Tools {
		strict = strict || value(t.Function.Strict, false)
	}
	calls := mode == "required" || mode == "auto" && strict
	asked := p.guide != nil
	switch format {
	case "", "text":
	case "json_object", "json_schema":
		if asked {
			return nil, badRequest("response_format", "give either response_format or structured outputs")
		}
		asked = true
	default:
		return nil, badRequest("response_format", "response_format type %q is unknown (have text, json_object, json_schema)", format)
	}
	if asked && calls {
		return nil, badRequest("response_format", "an answer in a given form cannot also be tool calls: leave out the form, strict tools, or tool_choice %s", req.ToolChoice)
	}
	if (asked || calls) && v.inThought {
		return nil, badRequest("response_format", "the template opens a thought, which the form asked for has no place for: set chat_template_kwargs {\"enable_thinking\": false}")
	}
	switch {
	case calls:
		return h.callGuide(req, mode == "required", name)
	case format == "json_object":
		return h.schemaGuide("response_format", anyObject)
	case format == "json_schema":
		if req.ResponseFormat.JSONSchema == nil || len(req.ResponseFormat.JSONSchema.Schema) == 0 {
			return nil, badRequest("response_format", "response_format json_schema needs json_schema.schema")
		}
		return h.schemaGuide("response_format", req.ResponseFormat.JSONSchema.Schema)
	}
	return h.guideOf(p.guide)
}

// callForms are the forms of calls that a grammar is known for.
var callForms = map[string]grammar.Call{"hermes": grammar.Hermes, "mistral": grammar.Mistral, "llama3": grammar.Llama}

// callGuide compiles the form of tool calls: with name, of that tool alone.
func (h *Handler) callGuide(req *ChatRequest, required bool, name string) (guideFunc, error) {
	var tools []model.ToolDef
	for _, t := range req.Tools {
		if name == "" || t.Function.Name == name {
			tools = append(tools, model.ToolDef{Name: t.Function.Name, Description: t.Function.Description, Parameters: t.Function.Parameters})
		}
	}
	if h.call.Open == "" {
		return nil, badRequest("tool_choice", "this model writes calls as %q, for which no constraint is implemented: use tool_choice auto and no strict tools", h.format.Name)
	}
	parallel := value(req.ParallelToolCalls, true) && name == ""
	return h.guide("tools", []any{tools, required, parallel}, func() (*grammar.Grammar, error) {
		return grammar.ToolCalls(tools, h.call, required, parallel, grammar.SchemaOptions{})
	})
}
