package model

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Info is what Inspect reads from a model's headers.
type Info struct {
	Path         string
	Format       string // "gguf" or "safetensors"
	Architecture string // as the file names it
	Config       Config
	Tensors      []TensorInfo
	Params       int64 // stored elements; a tied head counts once
	Bytes        int64 // stored size of the tensors
	// ByType maps an element type to its number of elements.
	ByType map[string]int64
	// VocabSize is the tokenizer's, 0 without one.
	VocabSize int
	// Template says whether there is a chat template, and Tools whether it
	// looks at tools (see RenderWithTools).
	Template, Tools bool
	// StopIDs are those that Open would give the model.
	StopIDs []int32
	// Chat describes the template; nil without one.
	Chat *ChatInfo `json:",omitempty"`
	// Problem is why Open would refuse the model; nil when nothing in the
	// headers speaks against it.
	Problem error
}

// Inspect describes a HF directory or GGUF file without reading its weights.
// What Open would refuse is reported in Problem, as far as the file is legible;
// the error is for files that can't be read at all.
func Inspect(path string) (*Info, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: inspect: %w", err)
	}
	info := &Info{Path: path, ByType: map[string]int64{}}
	if st.IsDir() {
		err = info.inspectHF(os.DirFS(path))
	} else {
		err = info.inspectGGUF(path)
	}
	if err != nil {
		return nil, fmt.Errorf("model: inspect %s: %w", path, err)
	}
	for _, t := range info.Tensors {
		info.Params += int64(t.Len())
		info.Bytes += t.Bytes
		info.ByType[t.DType] += int64(t.Len())
	}
	return info, nil
}

func (in *Info) inspectGGUF(path string) error {
	g, f, err := openGGUFHeader(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in.Format = "gguf"
	in.Architecture, _ = g.Meta["general.architecture"].(string)
	in.Tensors = g.Tensors()
	if in.Config, in.Problem = ggufConfig(g); in.Problem != nil {
		return nil
	}
	for _, t := range in.Tensors {
		if _, ok := ggufTypes[t.DType]; !ok {
			in.Problem = fmt.Errorf("%w: tensor %q: %w", ErrFormat, t.Name, refuseGGUF(t.DType))
			return nil
		}
	}
	if in.Problem = g.check(in.Config); in.Problem != nil {
		return nil
	}
	in.StopIDs = ggufStops(g)
	tok, tmpl, err := ggufText(g)
	in.text(tok, tmpl, err)
	return nil
}

func (in *Info) inspectHF(fsys fs.FS) error {
	data, err := fs.ReadFile(fsys, hfConfigFile)
	if err != nil {
		return err
	}
	in.Format = "safetensors"
	st, closer, err := openShards(fsys)
	if err != nil {
		return err
	}
	defer closer.Close()
	files := map[*SafeTensors]bool{}
	for _, s := range st {
		if !files[s] {
			files[s] = true
			in.Tensors = append(in.Tensors, s.Tensors()...)
		}
	}
	slices.SortFunc(in.Tensors, func(a, b TensorInfo) int { return strings.Compare(a.Name, b.Name) })
	var m Model
	if in.Config, m.StopIDs, in.Problem = ParseConfig(data); in.Problem != nil {
		return nil
	}
	if in.Problem = addGenerationStops(fsys, &m); in.Problem != nil {
		return nil
	}
	in.StopIDs = m.StopIDs
	in.Architecture = in.Config.ModelType
	for _, t := range in.Tensors {
		if DType(t.DType).size() == 0 {
			in.Problem = fmt.Errorf("%w: tensor %q: dtype %s is not implemented (have F32, F16, BF16)", ErrFormat, t.Name, t.DType)
			return nil
		}
	}
	st.forgetVision(in.Config)
	if in.Problem = st.check(in.Config); in.Problem != nil {
		return nil
	}
	tok, tmpl, err := openTextFS(fsys)
	in.text(tok, tmpl, err)
	return nil
}

func (in *Info) text(tok *Tokenizer, tmpl *ChatTemplate, err error) {
	if err != nil {
		in.Problem = err
		return
	}
	if tok != nil {
		in.VocabSize = tok.VocabSize()
		in.Problem = tok.CheckVocab(in.Config.VocabSize)
	}
	if tmpl != nil {
		in.Template, in.Tools = true, tmpl.SupportsTools()
		in.Chat = inspectChat(tmpl, tok, in.StopIDs)
	}
}

// Memory is an estimate in bytes of what a process needs, beyond a fixed
// few tens of MB, with f32 arithmetic.
type Memory struct {
	Weights     int64
	Cache       int64 // keys and values of the decoder's slots
	Adapter     int64 // trainable parameters, gradient and AdamW's two moments
	Activations int64
}

// Total is the sum.
func (m Memory) Total() int64 { return m.Weights + m.Cache + m.Adapter + m.Activations }

// RolloutMemory is for a decoder of so many slots of length tokens each.
func (c Config) RolloutMemory(slots, length int) Memory {
	return Memory{
		Weights:     4 * c.NumParams(),
		Cache:       4 * 2 * int64(c.NumHiddenLayers) * int64(kvDim(c)) * int64(slots) * int64(length),
		Activations: 4 * int64(slots) * int64(c.VocabSize),
	}
}

// TrainingMemory is for LoRA on a batch of so many sequences of length tokens,
// computed layer by layer: each layer's input is kept, one layer's inner values
// and attention scores exist at a time, and logits are made in chunks of 256
// positions.
func (c Config) TrainingMemory(lora LoRAConfig, sequences, length int) (Memory, error) {
	layout, err := LoRALayout(c, lora)
	if err != nil {
		return Memory{}, err
	}
	tokens := int64(sequences) * int64(length)
	mlp := inter(c)
	if c.Experts > 0 {
		mlp = max(mlp, c.ExpertsPerToken*c.ExpertSize)
	}
	inner := tokens * int64(4*hid(c)+2*qDim(c)+2*kvDim(c)+3*mlp+c.Experts)
	scores := int64(sequences) * int64(c.NumAttentionHeads) * int64(length) * int64(length)
	return Memory{
		Weights: 4 * c.NumParams(),
		Adapter: 4 * 4 * int64(layout.Size()),
		// Values and their gradients.
		Activations: 4 * (tokens*int64(hid(c))*int64(c.NumHiddenLayers+1) + 2*inner + 2*scores + 2*min(tokens, 256)*int64(c.VocabSize)),
	}, nil
}
