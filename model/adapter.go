package model

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"lukechampine.com/blake3"
)

// Keys of the safetensors metadata that bind an adapter to its base.
const (
	metaBase   = "skein_base_digest"
	metaLoRA   = "skein_lora" // absent from a full one
	metaFull   = "skein_full"
	metaFormat = "skein_format"

	blobFormat = "skein-adapter-v1"
)

const (
	peftConfigFile  = "adapter_config.json"
	peftWeightsFile = "adapter_model.safetensors"

	peftScore = peftPrefix + "score.weight"
)

// peftHeads are the modules that peft saves whole for task type SEQ_CLS; a Llama
// has only the second.
var peftHeads = []string{"classifier", "score"}

// Encode gives the adapter as one blob: a safetensors file with the flat vector
// "params", "score" if there is a value head, and in its metadata the LoRA
// configuration, or that it is full, and the base's digest. The bytes are a pure function of the content.
func (a *Adapter) Encode() []byte {
	// Neither call can fail: strings and finite numbers marshal, names are
	// fixed, and a bytes.Buffer takes everything.
	meta := map[string]string{metaFormat: blobFormat, metaBase: a.BaseDigest}
	if a.Full {
		meta[metaFull] = "true"
	} else {
		lora, err := json.Marshal(a.LoRA)
		if err != nil {
			panic("model: adapter with a LoRA configuration that Validate refuses: " + err.Error())
		}
		meta[metaLoRA] = string(lora)
	}
	var buf bytes.Buffer
	buf.Grow(4*len(a.Params) + 1024)
	dtype := F32
	if a.BF16 {
		dtype = BF16
	}
	tensors := []Tensor{{Name: "params", Shape: []int{len(a.Params)}, DType: dtype, Data: a.Params}}
	if a.Score != nil {
		tensors = append(tensors, Tensor{Name: "score", Shape: []int{len(a.Score)}, DType: dtype, Data: a.Score})
	}
	if err := WriteSafeTensors(&buf, tensors, meta); err != nil {
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
	a := &Adapter{BaseDigest: st.Metadata[metaBase], Full: st.Metadata[metaFull] == "true"}
	if lora := st.Metadata[metaLoRA]; a.Full && lora != "" {
		return nil, fmt.Errorf("%w: adapter blob: it has both %s and %s", ErrFormat, metaFull, metaLoRA)
	} else if !a.Full {
		if err := json.Unmarshal([]byte(lora), &a.LoRA); err != nil {
			return nil, fmt.Errorf("%w: adapter blob %s: %w", ErrFormat, metaLoRA, err)
		}
		if err := a.LoRA.Validate(); err != nil {
			return nil, fmt.Errorf("%w: adapter blob: %w", ErrFormat, err)
		}
	}
	if !st.Has("params") {
		return nil, fmt.Errorf("%w: adapter blob has no vector \"params\"", ErrFormat)
	}
	a.BF16 = DType(st.tensors["params"].DType) == BF16
	dtype := F32
	if a.BF16 {
		dtype = BF16
	}
	for _, name := range st.names {
		t := st.tensors[name]
		dst := map[string]*[]float32{"params": &a.Params, "score": &a.Score}[name]
		if dst == nil || len(t.Shape) != 1 || DType(t.DType) != dtype {
			return nil, fmt.Errorf("%w: adapter blob: %q is %s %v, want the F32 or BF16 vectors \"params\" and (optionally) \"score\"", ErrFormat, name, t.DType, t.Shape)
		}
		*dst = make([]float32, t.Len())
		if err := st.ReadF32(name, t.Shape, *dst); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// RoundBF16 is a copy whose numbers are rounded to the nearest bfloat16, ties to
// even.
func (a *Adapter) RoundBF16() *Adapter {
	round := func(x []float32) []float32 {
		if x == nil {
			return nil
		}
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = math.Float32frombits(uint32(floatToBF16(v)) << 16)
		}
		return y
	}
	r := *a
	r.Params, r.Score, r.BF16 = round(a.Params), round(a.Score), true
	return &r
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
// show as the base model (a path or hub name; may be empty). With a value head it
// is the adapter of a sequence classifier with one label, the head a saved
// module. Each file is replaced atomically, the configuration last.
func (a *Adapter) Save(dir string, c Config, baseName string) error {
	if err := a.Check(c); err != nil {
		return err
	}
	if a.Full {
		return fmt.Errorf("%w: it holds all weights and has no form in PEFT: save it as a model (Model.Merge)", ErrAdapter)
	}
	layout, err := LoRALayout(c, a.LoRA)
	if err != nil {
		return err
	}
	tensors := make([]Tensor, len(layout))
	for i, p := range layout {
		tensors[i] = Tensor{Name: p.Name, Shape: p.Shape, Data: a.Params[p.Offset : p.Offset+p.Len()]}
	}
	task, saved := "CAUSAL_LM", []string(nil)
	if a.Score != nil {
		task, saved = "SEQ_CLS", peftHeads
		tensors = append(tensors, Tensor{Name: peftScore, Shape: []int{1, len(a.Score)}, Data: a.Score})
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
		"task_type":               task,
		"modules_to_save":         saved,
		"base_model_name_or_path": baseName,
		"inference_mode":          true,
		"r":                       a.LoRA.Rank,
		"lora_alpha":              a.LoRA.Alpha,
		"lora_dropout":            0.0,
		"use_rslora":              a.LoRA.RSLoRA,
		"rank_pattern":            a.LoRA.RankPattern,
		"alpha_pattern":           a.LoRA.AlphaPattern,
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
// PEFT features that would change the computation (DoRA, saved modules,
// biases, ...) are refused by name. BaseDigest is empty when the
// adapter was made by another tool.
func LoadAdapter(dir string, c Config) (*Adapter, error) { return loadAdapter(dir, c, false) }

// LoadScoreAdapter is LoadAdapter for an adapter with a value head: a reward
// model or a critic, as peft saves AutoModelForSequenceClassification with
// num_labels 1.
func LoadScoreAdapter(dir string, c Config) (*Adapter, error) { return loadAdapter(dir, c, true) }

func loadAdapter(dir string, c Config, score bool) (*Adapter, error) {
	confPath := filepath.Join(dir, peftConfigFile)
	conf, err := os.ReadFile(confPath)
	if err != nil {
		return nil, fmt.Errorf("model: load adapter: %w", err)
	}
	lora, head, err := parsePEFTConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", confPath, err)
	}
	if head && !score {
		return nil, fmt.Errorf("%w: %s: modules_to_save %v: it is a reward model's, with a value head, not a policy's", ErrAdapter, confPath, peftHeads)
	}
	if score && !head {
		return nil, fmt.Errorf("%w: %s: modules_to_save has no \"score\": it has no value head and is no reward model", ErrAdapter, confPath)
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
	lora = lora.renamed(c, func(path string) string {
		const part = ".lora_A.weight"
		return strings.TrimSuffix(strings.TrimPrefix(peftName(st, c, peftPrefix+path+part), peftPrefix), part)
	})
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
	if head {
		want[peftScore] = true
		a.Score = make([]float32, c.HiddenSize)
		if err := st.ReadF32(peftScore, []int{1, c.HiddenSize}, a.Score); err != nil {
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
	const pre = peftPrefix + "model."
	if inner, ok := strings.CutPrefix(name, pre); ok && c.ModelType == "gemma3_text" && !st.Has(name) {
		for _, multimodal := range []string{pre + "language_model.", peftPrefix + "language_model.model."} {
			if st.Has(multimodal + inner) {
				return multimodal + inner
			}
		}
	}
	return name
}
