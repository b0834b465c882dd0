package model

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Save writes the model as a HF directory that Open and transformers read:
// config.json, generation_config.json, model.safetensors in the given type
// (zero = F32), and tokenizer.json, tokenizer_config.json and
// chat_template.jinja when the model has them. Weights stored as F16 or BF16
// are rounded, so a model read back from them has another digest.
func (m *Model) Save(dir string, dtype DType) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
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
	conf := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_act": "silu",
		"vocab_size": c.VocabSize, "hidden_size": c.HiddenSize, "intermediate_size": c.IntermediateSize,
		"num_hidden_layers": c.NumHiddenLayers, "num_attention_heads": c.NumAttentionHeads,
		"num_key_value_heads": c.NumKeyValueHeads, "head_dim": c.HeadDim,
		"max_position_embeddings": c.MaxPositionEmbeddings, "rms_norm_eps": c.RMSNormEps, "rope_theta": c.RopeTheta,
		"tie_word_embeddings": c.TieWordEmbeddings, "attention_bias": false, "mlp_bias": false, "torch_dtype": torchNames[dtype],
	}
	if c.ModelType == "mistral" {
		conf["architectures"], conf["model_type"], conf["sliding_window"] = []string{"MistralForCausalLM"}, "mistral", nil
	}
	gen := map[string]any{}
	if c.BOSTokenID >= 0 {
		conf["bos_token_id"], gen["bos_token_id"] = c.BOSTokenID, c.BOSTokenID
	}
	if c.EOSTokenID >= 0 {
		conf["eos_token_id"] = c.EOSTokenID
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

// saveWeights streams the tensors to a temporary file that replaces
// model.safetensors when it is complete.
func (m *Model) saveWeights(dir string, dtype DType) (err error) {
	f, err := os.CreateTemp(dir, "."+hfModelFile+"-*")
	if err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	var tensors []Tensor
	for _, s := range slots(m.Config, m.Weights) {
		tensors = append(tensors, Tensor{Name: s.name, Shape: s.shape, DType: dtype, Data: *s.data})
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = WriteSafeTensors(w, tensors, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	if err = w.Flush(); err == nil {
		if err = f.Chmod(0o644); err == nil {
			err = f.Sync()
		}
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, hfModelFile))
	}
	if err != nil {
		return fmt.Errorf("model: save %s: %w", hfModelFile, err)
	}
	return nil
}
