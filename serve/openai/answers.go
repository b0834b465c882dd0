package openai

// Completion is the answer of both completion endpoints, whole or one chunk.
type Completion struct {
	ID          string   `json:"id"`
	Object      string   `json:"object"`
	Created     int64    `json:"created"`
	Model       string   `json:"model"`
	Choices     []Choice `json:"choices"`
	Usage       *Usage   `json:"usage,omitempty"`
	Fingerprint string   `json:"system_fingerprint,omitempty"`
	// PromptTokenIDs is set when return_token_ids was asked for and there is one
	// prompt; in a stream, on the first chunk of each choice.
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
}

// Choice is one answer, or a piece of one.
type Choice struct {
	Index        int      `json:"index"`
	Message      *Message `json:"message,omitempty"` // chat
	Delta        *Delta   `json:"delta,omitempty"`   // chat, streamed
	Text         *string  `json:"text,omitempty"`    // completions
	Logprobs     any      `json:"logprobs"`
	FinishReason *string  `json:"finish_reason"`
	StopReason   any      `json:"stop_reason,omitempty"` // the stop string or token id that ended it

	TokenIDs       []int32      `json:"token_ids,omitempty"`
	PromptTokenIDs []int32      `json:"prompt_token_ids,omitempty"`
	PolicyVersions []VersionRun `json:"policy_versions,omitempty"`
}

// VersionRun says which policy version sampled the tokens up to End (exclusive).
type VersionRun struct {
	End     int    `json:"end"`
	Version uint64 `json:"version"`
	// Stale: sampled over cached tokens of an earlier version.
	Stale bool `json:"stale,omitempty"`
}

// Message is what the assistant said; Content is null beside calls.
type Message struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// Delta is a piece of a Message: what it has nothing of is absent.
type Delta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

func (d Delta) empty() bool {
	return d.Content == nil && d.Reasoning == "" && len(d.ToolCalls) == 0 && d.Role == ""
}

// ChatLogprobs are a chat choice's logprobs.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is one token with its likeliest alternatives.
type TokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
	// Top is absent from the alternatives themselves.
	Top *[]TokenLogprob `json:"top_logprobs,omitempty"`
}

// TextLogprobs are a text completion's logprobs, in columns.
type TextLogprobs struct {
	Tokens  []string             `json:"tokens"`
	Logprob []*float64           `json:"token_logprobs"` // null where nothing precedes
	Top     []map[string]float64 `json:"top_logprobs"`
	Offset  []int                `json:"text_offset"`
}

// Usage counts tokens.
type Usage struct {
	Prompt     int            `json:"prompt_tokens"`
	Completion int            `json:"completion_tokens"`
	Total      int            `json:"total_tokens"`
	Details    *PromptDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptDetails says how much of the prompt a cache spared.
type PromptDetails struct {
	Cached int `json:"cached_tokens"`
}

// ModelList is the answer of GET /v1/models.
type ModelList struct {
	Object string      `json:"object"`
	Data   []ModelCard `json:"data"`
}

// ModelCard describes a served model or adapter.
type ModelCard struct {
	ID        string  `json:"id"`
	Object    string  `json:"object"`
	Created   int64   `json:"created"`
	OwnedBy   string  `json:"owned_by"`
	Root      string  `json:"root,omitempty"`
	Parent    *string `json:"parent"` // the base of an adapter
	MaxLen    int     `json:"max_model_len,omitempty"`
	Digest    string  `json:"digest,omitempty"`
	Dimension int     `json:"embedding_dimension,omitempty"`
}

// EmbeddingList is the answer of POST /v1/embeddings.
type EmbeddingList struct {
	Object string      `json:"object"`
	Model  string      `json:"model"`
	Data   []Embedding `json:"data"`
	Usage  Usage       `json:"usage"`
}

// Embedding is one vector: []float32, or its little-endian bytes in base64.
type Embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"`
}

// Error is the API's error object.
type Error struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`

	Status int `json:"-"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }
