package embed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// ErrFormat marks a directory that is no sentence encoder this package can
// compute; the message names the file and the field.
var ErrFormat = errors.New("embed: bad or unsupported model")

// config is a BERT's shape.
type config struct {
	ModelType    string  `json:"model_type"`
	Vocab        int     `json:"vocab_size"`
	Hidden       int     `json:"hidden_size"`
	Inter        int     `json:"intermediate_size"`
	Layers       int     `json:"num_hidden_layers"`
	Heads        int     `json:"num_attention_heads"`
	MaxPositions int     `json:"max_position_embeddings"`
	Types        int     `json:"type_vocab_size"`
	Eps          float64 `json:"layer_norm_eps"`
	Act          string  `json:"hidden_act"`
	Positions    string  `json:"position_embedding_type"`

	maxTokens int // of one text, special tokens included
	cls       bool
	normalize bool
}

// readConfig reads config.json and sentence-transformers' modules.
func readConfig(dir string) (config, error) {
	c := config{Eps: 1e-12, Act: "gelu", Positions: "absolute"}
	if err := readJSON(dir, "config.json", &c); err != nil {
		return c, err
	}
	c.maxTokens = c.MaxPositions
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("%w: config.json: %w", ErrFormat, err)
	}
	var modules []struct {
		Path, Type string
	}
	switch err := readJSON(dir, "modules.json", &modules); {
	case errors.Is(err, fs.ErrNotExist):
		return c, fmt.Errorf("%w: modules.json is missing: it says how tokens are pooled; use a sentence-transformers directory", ErrFormat)
	case err != nil:
		return c, err
	}
	for _, m := range modules {
		var err error
		switch path.Ext(m.Type) {
		case ".Transformer":
			err = c.readLimit(dir)
		case ".Pooling":
			err = c.readPooling(filepath.Join(dir, filepath.FromSlash(path.Clean("/"+m.Path))))
		case ".Normalize":
			c.normalize = true
		default:
			err = fmt.Errorf("%w: modules.json: module %q is not implemented (have Transformer, Pooling, Normalize)", ErrFormat, m.Type)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *config) readLimit(dir string) error {
	var s struct {
		Max int `json:"max_seq_length"`
	}
	err := readJSON(dir, "sentence_bert_config.json", &s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if s.Max > 2 {
		c.maxTokens = min(s.Max, c.MaxPositions)
	}
	return err
}

func (c *config) readPooling(dir string) error {
	var modes map[string]json.RawMessage
	if err := readJSON(dir, "config.json", &modes); err != nil {
		return err
	}
	mean := false
	for key, value := range modes {
		if string(value) != "true" {
			continue
		}
		switch key {
		case "pooling_mode_mean_tokens":
			mean = true
		case "pooling_mode_cls_token":
			c.cls = true
		case "include_prompt":
		default:
			return fmt.Errorf("%w: pooling: %s is not implemented (have pooling_mode_mean_tokens, pooling_mode_cls_token)", ErrFormat, key)
		}
	}
	if mean == c.cls {
		return fmt.Errorf("%w: pooling: exactly one of pooling_mode_mean_tokens and pooling_mode_cls_token must be true", ErrFormat)
	}
	return nil
}

func (c *config) validate() error {
	var errs []error
	if c.ModelType != "bert" {
		errs = append(errs, fmt.Errorf("model_type %q is not implemented (have bert)", c.ModelType))
	}
	if c.Act != "gelu" {
		errs = append(errs, fmt.Errorf("hidden_act %q is not implemented (have gelu)", c.Act))
	}
	if c.Positions != "absolute" {
		errs = append(errs, fmt.Errorf("position_embedding_type %q is not implemented (have absolute)", c.Positions))
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"intermediate_size", c.Inter}, {"num_hidden_layers", c.Layers},
		{"num_attention_heads", c.Heads}, {"max_position_embeddings", c.MaxPositions}, {"type_vocab_size", c.Types},
	} {
		if f.value < 1 || f.value > 1<<24 {
			errs = append(errs, fmt.Errorf("%s is %d, want 1 to %d", f.name, f.value, 1<<24))
		}
	}
	if c.Heads > 0 && c.Hidden%c.Heads != 0 {
		errs = append(errs, fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d", c.Hidden, c.Heads))
	}
	if !(c.Eps > 0) {
		errs = append(errs, fmt.Errorf("layer_norm_eps is %v, want > 0", c.Eps))
	}
	return errors.Join(errs...)
}

func readJSON(dir, name string, dst any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("embed: %w", err)
	}
	if err := json.Unmarshal(data, dst); err != nil {
		return fmt.Errorf("%w: %s: %v", ErrFormat, filepath.Join(dir, name), err)
	}
	return nil
}
