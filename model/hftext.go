package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

const (
	hfTokenizerFile = "tokenizer.json"
	spmFile         = "tokenizer.model" // SentencePiece's, read when there is no tokenizer.json
	hfTokConfigFile = "tokenizer_config.json"
	hfTemplateFile  = "chat_template.jinja"
)

// openTextFS reads the tokenizer and chat template of a HF directory; nil when
// there is none.
func openTextFS(fsys fs.FS) (*Tokenizer, *ChatTemplate, error) {
	data, err := optionalFile(fsys, hfTokenizerFile)
	if err != nil {
		return nil, nil, err
	}
	var tok *Tokenizer
	if data != nil {
		if tok, err = ParseTokenizer(data); err != nil {
			return nil, nil, err
		}
	}
	conf, err := optionalFile(fsys, hfTokConfigFile)
	if err != nil {
		return nil, nil, err
	}
	if tok == nil {
		if data, err = optionalFile(fsys, spmFile); err != nil {
			return nil, nil, err
		}
		if data != nil {
			if tok, err = parseTokenizerModel(data, conf); err != nil {
				return nil, nil, err
			}
		}
	}
	var raw map[string]json.RawMessage
	if conf != nil {
		if err := json.Unmarshal(conf, &raw); err != nil {
			return nil, nil, fmt.Errorf("%w: %s: %v", ErrFormat, hfTokConfigFile, err)
		}
	}
	source, err := templateSource(fsys, raw["chat_template"])
	if err != nil || source == "" {
		return tok, nil, err
	}
	special := map[string]string{}
	for key, v := range raw {
		if !strings.HasSuffix(key, "_token") {
			continue
		}
		var s string
		var obj struct{ Content string }
		if json.Unmarshal(v, &s) == nil && s != "" {
			special[key] = s
		} else if json.Unmarshal(v, &obj) == nil && obj.Content != "" {
			special[key] = obj.Content
		}
	}
	tmpl, err := NewChatTemplate(source, special)
	return tok, tmpl, err
}

// templateSource prefers chat_template.jinja; in tokenizer_config.json the
// template is a string, or a list of named ones, of which "default" is taken.
func templateSource(fsys fs.FS, raw json.RawMessage) (string, error) {
	data, err := optionalFile(fsys, hfTemplateFile)
	if err != nil || data != nil {
		return string(data), err
	}
	if isNull(raw) {
		return "", nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one, nil
	}
	var many []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &many); err != nil {
		return "", fmt.Errorf("%w: %s: chat_template is neither a string nor a list of named ones", ErrFormat, hfTokConfigFile)
	}
	for _, t := range many {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", fmt.Errorf("%w: %s: chat_template lists no \"default\"", ErrFormat, hfTokConfigFile)
}

// optionalFile gives nil when the file doesn't exist.
func optionalFile(fsys fs.FS, name string) ([]byte, error) {
	data, err := fs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("model: read %s: %w", name, err)
	}
	return data, nil
}

// ggufText builds tokenizer and chat template from a GGUF's metadata; nil when
// there is none.
func ggufText(g *GGUF) (*Tokenizer, *ChatTemplate, error) {
	tok, err := ggufTokenizer(g)
	if err != nil {
		return nil, nil, err
	}
	source, ok := g.Meta["tokenizer.chat_template"].(string)
	if !ok || source == "" {
		return tok, nil, nil
	}
	special := map[string]string{}
	if tok != nil {
		for key, name := range map[string]string{"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"} {
			if id, ok := g.Meta["tokenizer.ggml."+key+"_token_id"].(uint64); ok && id < uint64(tok.VocabSize()) {
				special[name+"_token"] = tok.Token(int32(id))
			}
		}
	}
	tmpl, err := NewChatTemplate(source, special)
	return tok, tmpl, err
}
