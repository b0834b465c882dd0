package model

import "encoding/json"

// prefixConversation is a conversation whose renderings are compared.
type prefixConversation struct {
	name     string
	messages []Message
	tools    []ToolDef
}

// prefixConversations are what CheckPrefixExtension tries: what agents do and
// what templates are known to rewrite.
func prefixConversations() []prefixConversation {
	tools := []ToolDef{{Name: "price", Description: "Price of an item", Parameters: json.RawMessage(`{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}`)}}
	const (
		thought = "<think>\nI look it up.\n</think>\n\n"
		call    = "<tool_call>\n{\"name\": \"price\", \"arguments\": {\"item\": \"tea\"}}\n</tool_call>"
	)
	system, user := Message{Role: "system", Content: "You sell."}, Message{Role: "user", Content: "Price of tea?"}
	result := Message{Role: "tool", Name: "price", ToolCallID: "call00001", Content: "3"}
	said := func(s string) Message { return Message{Role: "assistant", Content: s} }
	more := Message{Role: "user", Content: "And now?"}
	return []prefixConversation{
		{"turns", []Message{user, said("Three."), more, said("Four."), more}, nil},
		{"system", []Message{system, user, said("Three."), more, said("Four."), more}, nil},
		{"white space", []Message{user, said("\n Three. \n"), more}, nil},
		{"empty turn", []Message{user, said(""), more}, nil},
		{"tool call", []Message{system, user, said(call), result, said("Three."), more}, tools},
		{"tool calls", []Message{user, said("Let me see.\n" + call + "\n" + call), result, result, said(call), result}, tools},
		{"reasoning", []Message{user, said(thought + "Three."), more, said(thought + "Four."), more}, nil},
		{"reasoning and call", []Message{system, user, said(thought + call), result, said(thought + call), result, said(thought + "Three."), more}, tools},
	}
}
