package model

import "slices"

// ChatInfo is what Inspect finds out about a chat template by rendering a few
// conversations with it.
type ChatInfo struct {
	// TurnEnd is the mark after an assistant's turn; "" when there is none, of
	// which TurnEndProblem then speaks.
	TurnEnd        string
	TurnEndProblem string `json:",omitempty"`
	// Variables are those of common use that the template reads.
	Variables []string
	// Prefix says where the template rewrites what the engine has seen, so that a
	// rollout starts a new branch.
	Prefix PrefixReport

	// Template and Tokenizer are those of the model.
	Template  *ChatTemplate `json:"-"`
	Tokenizer *Tokenizer    `json:"-"`
}

// templateVariables are what templates commonly read beside the conversation.
var templateVariables = []string{"enable_thinking", "thinking", "reasoning_effort", "thinking_budget", "preserve_thinking", "clear_thinking", "date_string", "tools_in_user_message", "xml_tools", "python_tools", "custom_tools", "documents"}

func inspectChat(tmpl *ChatTemplate, tok *Tokenizer, stops []int32) *ChatInfo {
	in := &ChatInfo{Template: tmpl, Tokenizer: tok}
	end, _, err := TurnEnd(tmpl, tok, stops)
	if err != nil {
		in.TurnEndProblem = err.Error()
	}
	in.TurnEnd = end
	in.Variables = slices.DeleteFunc(slices.Clone(templateVariables), func(v string) bool { return !tmpl.Uses(v) })
	in.Prefix = CheckPrefixExtension(tmpl, tok, end)
	return in
}
