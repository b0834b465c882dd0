package data

// Chat is a model's tokenizer and template, as this package needs them. Whoever
// joins the rooms gives one that tokenises conversations exactly as a rollout
// does.
type Chat interface {
	// Conversation tokenises a conversation that ends with an assistant message;
	// turns says which tokens each assistant message wrote, the mark that ends
	// it included, in order.
	Conversation(tools []Tool, messages []Message) (ids []int32, turns []Turn, err error)
	// Opening tokenises a prompt up to where the assistant begins to write.
	Opening(tools []Tool, messages []Message) ([]int32, error)
	// Text tokenises plain text; first says that it begins the sequence, where
	// some models want a mark.
	Text(text string, first bool) []int32
	// End is the token that ends plain text.
	End() int32
}

// Turn is tokens [Start, End) of one assistant message; Calls says that it
// calls tools.
type Turn struct {
	Start, End int
	Calls      bool
}
