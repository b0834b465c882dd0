package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Common are the fields that chat and text completions share. Pointers tell
// absent from zero.
type Common struct {
	Model            string             `json:"model"`
	N                *int               `json:"n"`
	MaxTokens        *int               `json:"max_tokens"`
	Temperature      *float64           `json:"temperature"` // default 1
	TopP             *float64           `json:"top_p"`       // default 1
	TopK             *int               `json:"top_k"`       // 0 or -1 = off
	MinP             *float64           `json:"min_p"`
	Repetition       *float64           `json:"repetition_penalty"`
	Frequency        *float64           `json:"frequency_penalty"`
	Presence         *float64           `json:"presence_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`
	Seed             *int64             `json:"seed"`
	Stop             Strings            `json:"stop"`
	StopTokenIDs     []int32            `json:"stop_token_ids"`
	IgnoreEOS        bool               `json:"ignore_eos"`
	MinTokens        *int               `json:"min_tokens"` // before an end of sequence or a stop token id may come
	AllowedTokenIDs  []int32            `json:"allowed_token_ids"`
	IncludeStop      bool               `json:"include_stop_str_in_output"`
	SkipSpecial      *bool              `json:"skip_special_tokens"` // default true
	Stream           bool               `json:"stream"`
	StreamOptions    *StreamOptions     `json:"stream_options"`
	ReturnTokenIDs   bool               `json:"return_token_ids"`
	TokensAsIDs      bool               `json:"return_tokens_as_token_ids"` // tokens of logprobs as "token_id:7"
	Priority         *int               `json:"priority"`                   // vLLM's: lower ones go first
	LogprobsMode     string             `json:"logprobs_mode"`              // "raw" (default) or "sampled"
	StructuredOutput *Structured        `json:"structured_outputs"`
	GuidedJSON       json.RawMessage    `json:"guided_json"`
	GuidedRegex      string             `json:"guided_regex"`
	GuidedChoice     []string           `json:"guided_choice"`
	GuidedGrammar    string             `json:"guided_grammar"`
	CacheSession     string             `json:"session"` // turns of one episode share a cache
	MinPolicyVersion uint64             `json:"min_policy_version"`

	// Accepted and without effect on the tokens.
	User        string          `json:"user"`
	Metadata    json.RawMessage `json:"metadata"`
	Store       *bool           `json:"store"`
	ServiceTier string          `json:"service_tier"`
	SafetyID    string          `json:"safety_identifier"`
	CacheKey    string          `json:"prompt_cache_key"`
}

// StreamOptions of a streamed answer.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	// Obfuscation pads chunks against traffic analysis; not done here.
	Obfuscation *bool `json:"include_obfuscation"`
}

// UnmarshalJSON refuses options that are not known.
func (o *StreamOptions) UnmarshalJSON(data []byte) error {
	type plain StreamOptions
	return strictly(data, "stream_options", (*plain)(o))
}

// Structured is vLLM's structured_outputs; exactly one field is set.
type Structured struct {
	JSON       json.RawMessage `json:"json"`
	JSONObject bool            `json:"json_object"`
	Regex      string          `json:"regex"`
	Choice     []string        `json:"choice"`
	Grammar    string          `json:"grammar"`
}

// UnmarshalJSON refuses forms that are not known: a form that is not read would
// leave the answer free.
func (s *Structured) UnmarshalJSON(data []byte) error {
	type plain Structured
	return strictly(data, "structured_outputs", (*plain)(s))
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Common
	Messages            []ChatMessage   `json:"messages"`
	Tools               []Tool          `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"` // none, auto, required or {"type":"function","function":{"name":…}}
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *ResponseFormat `json:"response_format"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Logprobs            bool            `json:"logprobs"`
	TopLogprobs         *int            `json:"top_logprobs"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"` // default true
	AddSpecialTokens    bool            `json:"add_special_tokens"`    // the template brings its own
	ReasoningEffort     string          `json:"reasoning_effort"`      // for templates that read it
	TemplateKwargs      map[string]any  `json:"chat_template_kwargs"`
}

// ChatMessage is one message of a request.
type ChatMessage struct {
	Role             string     `json:"role"`
	Content          Content    `json:"content"`
	Name             string     `json:"name"`
	ToolCalls        []ToolCall `json:"tool_calls"`
	ToolCallID       string     `json:"tool_call_id"`
	Reasoning        string     `json:"reasoning"`
	ReasoningContent string     `json:"reasoning_content"`
	Refusal          *string    `json:"refusal"`
}

// Content is text, given as a string or as a list of text parts.
type Content string

// UnmarshalJSON refuses parts that are not text.
func (c *Content) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("null")) {
		*c = ""
		return nil
	}
	var s string
	if json.Unmarshal(data, &s) == nil {
		*c = Content(s)
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return fmt.Errorf("content must be a string or a list of parts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content part of type %q is not supported: this model reads text only", p.Type)
		}
		*c += Content(p.Text)
	}
	return nil
}

// Tool is a function the model may call.
type Tool struct {
	Type     string   `json:"type"`
	Function Function `json:"function"`
}

// Function describes a tool; Parameters is a JSON Schema.
type Function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// ToolCall is a call in a message or an answer. Arguments is JSON in a string.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // streaming only
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function CalledAction `json:"function"`
}

// CalledAction names the function called.
type CalledAction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// ResponseFormat asks for text, json_object or json_schema.
type ResponseFormat struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      *bool           `json:"strict"`
	} `json:"json_schema"`
}

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Common
	Prompt           Prompts `json:"prompt"`
	Echo             bool    `json:"echo"`
	Logprobs         *int    `json:"logprobs"` // top n beside the sampled token
	BestOf           *int    `json:"best_of"`
	Suffix           *string `json:"suffix"`
	AddSpecialTokens *bool   `json:"add_special_tokens"` // default true
}

// Prompts are texts or token ids, one or several.
type Prompts struct {
	Texts []string  // set, or
	IDs   [][]int32 // this
}

// UnmarshalJSON reads a string, a list of strings, a list of ids or a list of
// lists of ids.
func (p *Prompts) UnmarshalJSON(data []byte) error {
	var s string
	var ids []int32
	switch {
	case bytes.Equal(data, []byte("null")):
	case json.Unmarshal(data, &s) == nil:
		p.Texts = []string{s}
	case json.Unmarshal(data, &ids) == nil:
		if len(ids) > 0 {
			p.IDs = [][]int32{ids}
		}
	case json.Unmarshal(data, &p.Texts) == nil:
	case json.Unmarshal(data, &p.IDs) == nil:
		p.Texts = nil
	default:
		return fmt.Errorf("prompt must be a string, a list of strings, a list of token ids or a list of those")
	}
	return nil
}

// Len is the number of prompts.
func (p Prompts) Len() int { return max(len(p.Texts), len(p.IDs)) }

// Strings are stop strings: one, or a list of them.
type Strings []string

// UnmarshalJSON reads either form.
func (s *Strings) UnmarshalJSON(data []byte) error {
	var one string
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	if json.Unmarshal(data, &one) == nil {
		*s = Strings{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(data, &many); err != nil {
		return fmt.Errorf("stop must be a string or a list of strings")
	}
	*s = many
	return nil
}

// EmbeddingRequest is the body of POST /v1/embeddings.
type EmbeddingRequest struct {
	Model          string  `json:"model"`
	Input          Prompts `json:"input"`
	EncodingFormat string  `json:"encoding_format"` // float (default) or base64
	Dimensions     *int    `json:"dimensions"`
	User           string  `json:"user"`
	Truncate       *int    `json:"truncate_prompt_tokens"` // -1 = to what the model takes
}
