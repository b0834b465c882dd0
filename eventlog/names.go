package eventlog

import "fmt"

var (
	kindNames   = []string{"unknown", "text", "reasoning", "tool_call", "tool_result", "observation", "turn_complete", "reward", "memory_op"}
	tierNames   = []string{"light", "full"}
	scopeNames  = []string{"none", "step", "turn", "episode"}
	statusNames = []string{"unknown", "ok", "truncated", "failed", "timed_out"}
	writerNames = []string{"unknown", "prompt", "policy", "environment", "expert"}
)

func name(names []string, i uint8, what string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

// String returns the kind's name in lower case: "tool_call".
func (k Kind) String() string { return name(kindNames, uint8(k), "kind") }

// String returns "light" or "full".
func (t Tier) String() string { return name(tierNames, uint8(t), "tier") }

// String returns "none", "step", "turn" or "episode".
func (s Scope) String() string { return name(scopeNames, uint8(s), "scope") }

// String returns the status in lower case: "timed_out".
func (s Status) String() string { return name(statusNames, uint8(s), "status") }

// String returns the writer in lower case: "policy".
func (w Writer) String() string { return name(writerNames, uint8(w), "writer") }
