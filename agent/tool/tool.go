// Package tool is what an agent may call: the description shown to the model,
// the parsed call, and the environment that executes it.
package tool

import (
	"context"
	"encoding/json"
)

// Spec describes a tool to the chat template. Parameters is a JSON Schema
// object.
type Spec struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// Call is one parsed tool call.
type Call struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object
}

// Env executes the calls of one rollout and owns its private state. An error
// is shown to the model as the call's result; it never ends the rollout. The
// calls of one turn run side by side, and one that timed out may still run
// during the next: Call must be safe for concurrent use.
type Env interface {
	Call(ctx context.Context, call Call) (string, error)
}
