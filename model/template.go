package model

// ChatTemplate renders a conversation into the text a model was trained on.
type ChatTemplate struct{}
