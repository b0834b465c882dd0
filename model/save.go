package model

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// CheckSave says whether Save can write this model.
func (m *Model) CheckSave() error {
	_, err := hfConfigJSON(m.Config, F32)
	return err
}

// Save writes the model as a HF directory that Open and transformers read:
// config.json, generation_config.json, model.safetensors in the given type
// (zero = F32), and tokenizer.json, tokenizer_config.json and
// chat_template.jinja when the model has them. Weights stored as F16 or BF16
// are rounded, so a model read back from them has another digest. A model that
// HF's class for it can't describe is refused, by field.
func (m *Model) Save(dir string, dtype DType) error {
	write := func(name string, v any) error {
		data, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("model: encode %s: %w", name, err)
		}
		if err := writeFileAtomic(filepath.Join(dir, name), append(data, '\n')); err != nil {
			return fmt.Errorf("model: save: %w", err)
		}
		return nil
	}
	c := m.Config
	conf, err := hfConfigJSON(c, dtype)
	if err != nil {
		return err
	}
	if err := m.Weights.Load(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	gen := map[string]any{}
	if c.BOSTokenID >= 0 {
		gen["bos_token_id"] = c.BOSTokenID
	}
	if len(m.StopIDs) > 0 {
		gen["eos_token_id"] = m.StopIDs
	}
	if err := m.saveWeights(dir, dtype); err != nil {
		return err
	}
	if err := write(hfGenFile, gen); err != nil {
		return err
	}
	if m.Tokenizer != nil {
		data, err := m.Tokenizer.MarshalJSON()
		if err != nil {
			return fmt.Errorf("model: encode %s: %w", hfTokenizerFile, err)
		}
		if err := writeFileAtomic(filepath.Join(dir, hfTokenizerFile), data); err != nil {
			return fmt.Errorf("model: save: %w", err)
		}
		tc := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false, "model_max_length": c.MaxPositionEmbeddings}
		for name, id := range map[string]int32{"bos_token": c.BOSTokenID, "eos_token": c.EOSTokenID, "pad_token": c.EOSTokenID} {
			if t := m.Tokenizer.Token(id); t != "" {
				tc[name] = t
			}
		}
		if err := write(hfTokConfigFile, tc); err != nil {
			return err
		}
	}
	if m.Template != nil {
		if err := writeFileAtomic(filepath.Join(dir, hfTemplateFile), []byte(m.Template.Source())); err != nil {
			return fmt.Errorf("model: save: %w", err)
		}
	}
	return write(hfConfigFile, conf) // last: a directory without it is no model
}

var torchNames = map[DType]string{"": "float32", F32: "float32", F16: "float16", BF16: "bfloat16"}

// saveWeights replaces model.safetensors when all tensors are written.
func (m *Model) saveWeights(dir string, dtype DType) error {
	var tensors []Tensor
	for _, s := range slots(m.Config, m.Weights) {
		data := *s.data
		if s.norm && m.Config.NormPlusOne {
			data = slices.Clone(data)
			for i := range data {
				data[i]--
			}
		}
		tensors = append(tensors, Tensor{Name: s.name, Shape: s.shape, DType: dtype, Data: data})
	}
	err := writeAtomic(filepath.Join(dir, hfModelFile), func(w io.Writer) error {
		return WriteSafeTensors(w, tensors, map[string]string{"format": "pt"})
	})
	if err != nil {
		return fmt.Errorf("model: save %s: %w", hfModelFile, err)
	}
	return nil
}
