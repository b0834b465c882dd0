package model

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lukechampine.com/blake3"
)

// Keys of the safetensors metadata that bind an adapter to its base.
const (
	metaBase   = "skein_base_digest"
	metaLoRA   = "skein_lora"
	metaFormat = "skein_format"

	blobFormat = "skein-adapter-v1"
)

const (
	peftConfigFile  = "adapter_config.json"
	peftWeightsFile = "adapter_model.safetensors"
)

// Encode gives the adapter as one blob: a safetensors file with the flat
// vector as its only tensor and the LoRA configuration and base digest in its
// metadata. The bytes are a pure function of the content.
func (a *Adapter) Encode() []byte {
	// Neither call can fail: strings and finite numbers marshal, names are
	// fixed, and a bytes.Buffer takes everything.
	lora, err := json.Marshal(a.LoRA)
	if err != nil {
		panic("model: adapter with a LoRA configuration that Validate refuses: " + err.Error())
	}
	var buf bytes.Buffer
	buf.Grow(4*len(a.Params) + 1024)
	err = WriteSafeTensors(&buf,
		[]Tensor{{Name: "params", Shape: []int{len(a.Params)}, Data: a.Params}},
		map[string]string{metaFormat: blobFormat, metaBase: a.BaseDigest, metaLoRA: string(lora)})
	if err != nil {
		panic("model: encode adapter: " + err.Error())
	}
	return buf.Bytes()
}

// DecodeAdapter reads what Encode wrote. Whether it fits a model is for Check
// and CheckBase to say. Errors wrap ErrFormat.
func DecodeAdapter(blob []byte) (*Adapter, error) {
	st, err := ReadSafeTensors(bytes.NewReader(blob), int64(len(blob)))
	if err != nil {
		return nil, fmt.Errorf("model: adapter blob: %w", err)
	}
	if f := st.Metadata[metaFormat]; f != blobFormat {
		return nil, fmt.Errorf("%w: adapter blob has format %q, want %q", ErrFormat, f, blobFormat)
	}
	a := &Adapter{BaseDigest: st.Metadata[metaBase]}
	if err := json.Unmarshal([]byte(st.Metadata[metaLoRA]), &a.LoRA); err != nil {
		return nil, fmt.Errorf("%w: adapter blob %s: %w", ErrFormat, metaLoRA, err)
	}
	if err := a.LoRA.Validate(); err != nil {
		return nil, fmt.Errorf("%w: adapter blob: %w", ErrFormat, err)
	}
	t, ok := st.tensors["params"]
	if !ok || len(st.tensors) != 1 || len(t.Shape) != 1 {
		return nil, fmt.Errorf("%w: adapter blob must hold exactly the vector \"params\"", ErrFormat)
	}
	if DType(t.DType) != F32 {
		return nil, fmt.Errorf("%w: adapter blob: params is %s, want F32", ErrFormat, t.DType)
	}
	a.Params = make([]float32, t.Len())
	return a, st.ReadF32("params", t.Shape, a.Params)
}

// Digest names the adapter's content: "blake3:<hex>" of Encode's bytes.
func (a *Adapter) Digest() string { return BlobDigest(a.Encode()) }

// BlobDigest is "blake3:<hex>" of the bytes: the digest by which encoded
// adapters are stored and verified.
func BlobDigest(blob []byte) string {
	sum := blake3.Sum256(blob)
	return "blake3:" + hex.EncodeToString(sum[:])
}

// Save writes dir/adapter_config.json and dir/adapter_model.safetensors in
// PEFT's format, which peft, transformers and vLLM read. baseName is what they
// show as the base model (a path or hub name; may be empty). Each file is
// replaced atomically, the configuration last.
func (a *Adapter) Save(dir string, c Config, baseName string) error {
	if err := a.Check(c); err != nil {
		return err
	}
	layout, err := LoRALayout(c, a.LoRA)
	if err != nil {
		return err
	}
	tensors := make([]Tensor, len(layout))
	for i, p := range layout {
		tensors[i] = Tensor{Name: p.Name, Shape: p.Shape, Data: a.Params[p.Offset : p.Offset+p.Len()]}
	}
	meta := map[string]string{"format": "pt"}
	if a.BaseDigest != "" {
		meta[metaBase] = a.BaseDigest
	}
	var weights bytes.Buffer
	if err := WriteSafeTensors(&weights, tensors, meta); err != nil {
		return err
	}
	conf, err := json.MarshalIndent(map[string]any{
		"peft_type":               "LORA",
		"task_type":               "CAUSAL_LM",
		"base_model_name_or_path": baseName,
		"inference_mode":          true,
		"r":                       a.LoRA.Rank,
		"lora_alpha":              a.LoRA.Alpha,
		"lora_dropout":            0.0,
		"use_rslora":              a.LoRA.RSLoRA,
		"use_dora":                false,
		"target_modules":          a.LoRA.Targets,
		"bias":                    "none",
		"fan_in_fan_out":          false,
		"init_lora_weights":       true,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("model: encode %s: %w", peftConfigFile, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("model: save adapter: %w", err)
	}
	if err := writeFileAtomic(filepath.Join(dir, peftWeightsFile), weights.Bytes()); err != nil {
		return fmt.Errorf("model: save adapter: %w", err)
	}
	if err := writeFileAtomic(filepath.Join(dir, peftConfigFile), append(conf, '\n')); err != nil {
		return fmt.Errorf("model: save adapter: %w", err)
	}
	return nil
}

// LoadAdapter reads a PEFT LoRA directory for a model of configuration c. Every
// tensor of the file must be used exactly once and every expected one present.
// PEFT features that would change the computation (DoRA, rank patterns, saved
// modules, biases, ...) are refused by name. BaseDigest is empty when the
// adapter was made by another tool.
func LoadAdapter(dir string, c Config) (*Adapter, error) {
	confPath := filepath.Join(dir, peftConfigFile)
	conf, err := os.ReadFile(confPath)
	if err != nil {
		return nil, fmt.Errorf("model: load adapter: %w", err)
	}
	lora, err := parsePEFTConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", confPath, err)
	}
	lora = lora.Resolve(c)
	path := filepath.Join(dir, peftWeightsFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("model: load adapter: %w (only safetensors adapters are read, not adapter_model.bin)", err)
	}
	defer f.Close()
	st, err := openSafeTensors(f)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	layout, err := LoRALayout(c, lora)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", confPath, err)
	}
	a := &Adapter{LoRA: lora, BaseDigest: st.Metadata[metaBase], Params: make([]float32, layout.Size())}
	want := make(map[string]bool, len(layout))
	for _, p := range layout {
		name := peftName(st, c, p.Name)
		want[name] = true
		if err := st.ReadF32(name, p.Shape, a.Params[p.Offset:p.Offset+p.Len()]); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrAdapter, path, err)
		}
	}
	for _, n := range st.names {
		if !want[n] {
			return nil, fmt.Errorf("%w: %s holds tensor %q, which target_modules %v of this model doesn't have", ErrAdapter, path, n, lora.Targets)
		}
	}
	if err := a.Check(c); err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	return a, nil
}

// peftName is a layout's name as the file has it: adapters trained on a
// multimodal Gemma 3 name the text model inside.
func peftName(st *SafeTensors, c Config, name string) string {
	const pre = "base_model.model.model."
	if inner, ok := strings.CutPrefix(name, pre); ok && c.ModelType == "gemma3_text" && !st.Has(name) {
		for _, multimodal := range []string{pre + "language_model.", "base_model.model.language_model.model."} {
			if st.Has(multimodal + inner) {
				return multimodal + inner
			}
		}
	}
	return name
}
