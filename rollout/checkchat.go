package rollout

import (
	"errors"
	"fmt"

	"github.com/skein-rl/skein/agent/tool"
)

// CheckCalls says whether a rollout with tools goes on without a fork: the
// template writes a call, the chat's call format reads it back, and the results
// of two turns follow what was emitted. The error tells which of these fails.
func CheckCalls(chat Chat) error {
	spec := tool.Spec{Name: "price", Description: "Price of an item", Parameters: []byte(`{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}`)}
	t, err := newTranscript(chat, []tool.Spec{spec}, []Message{{Role: "user", Content: "Price of tea?"}})
	if err != nil {
		return err
	}
	for n := 1; n <= 2; n++ {
		m := Message{Role: "assistant", Calls: []tool.Call{{ID: CallID(n), Name: spec.Name, Arguments: []byte(`{"item":"tea"}`)}}}
		results := []Message{{Role: "tool", Name: spec.Name, CallID: CallID(n), Content: "3"}}
		content, stop, err := t.write(m, results)
		if errors.Is(err, errOpening) { // the prompt may open a thought that wants content
			m.Reasoning = "I look it up."
			content, stop, err = t.write(m, results)
		}
		if err != nil {
			return err
		}
		t.emitted(append(chat.Encode(content), stop), true)
		d, err := t.extend(results)
		if err != nil {
			return err
		}
		if d.forked {
			return fmt.Errorf("after the call of turn %d, written as %q, the chat template rewrites what was emitted", n, clip(content, 200))
		}
		t.apply(d)
	}
	return nil
}
