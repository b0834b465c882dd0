package model

// Tokenizer turns text into token ids and back, exactly as the model's own.
type Tokenizer struct{}
