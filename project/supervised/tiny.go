package supervised

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// TinyRecipe makes the embedded model: a Llama-shaped decoder trained from
// random weights on demonstrations of the store task, half of whose questions
// carry a bad habit, so that reinforcement learning has something to improve.
// Everything follows from the recipe: the same one gives the same file on the
// same kind of machine.
type TinyRecipe struct {
	Seed uint64 `yaml:"seed"`
	// VocabSize of the tokenizer, its specials and bytes included.
	VocabSize             int `yaml:"vocab_size"`
	HiddenSize            int `yaml:"hidden_size"`
	IntermediateSize      int `yaml:"intermediate_size"`
	NumHiddenLayers       int `yaml:"num_hidden_layers"`
	NumAttentionHeads     int `yaml:"num_attention_heads"`
	NumKeyValueHeads      int `yaml:"num_key_value_heads"`
	MaxPositionEmbeddings int `yaml:"max_position_embeddings"`
	// Examples is the number of demonstrations, NoiseRate the probability that
	// one of a question with a bad habit shows it.
	Examples  int            `yaml:"examples"`
	NoiseRate float64        `yaml:"noise_rate"`
	Training  learner.Config `yaml:"training"`
}

// config is the architecture, for a tokenizer of the given size.
func (r TinyRecipe) config(vocab int) (model.Config, error) {
	c := model.Config{
		ModelType: "llama", VocabSize: vocab, HiddenSize: r.HiddenSize, IntermediateSize: r.IntermediateSize,
		NumHiddenLayers: r.NumHiddenLayers, NumAttentionHeads: r.NumAttentionHeads, NumKeyValueHeads: r.NumKeyValueHeads,
		MaxPositionEmbeddings: r.MaxPositionEmbeddings, RMSNormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true,
		BOSTokenID: 1, EOSTokenID: 0,
	}
	if r.NumAttentionHeads > 0 {
		c.HeadDim = r.HiddenSize / r.NumAttentionHeads
	}
	return c, c.Validate()
}

// tinySpecials are the tiny tokenizer's special tokens; the first is
// end-of-turn and the second pads nothing (there is no padding) but keeps
// conventional tools happy.
var tinySpecials = []string{"<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"}

// LoadTinyRecipe reads a recipe onto the SFT defaults.
func LoadTinyRecipe(path string) (TinyRecipe, error) {
	f, err := os.Open(path)
	if err != nil {
		return TinyRecipe{}, fmt.Errorf("supervised: tiny model recipe: %w", err)
	}
	defer f.Close()
	r := TinyRecipe{Training: learner.DefaultSFTConfig()}
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(&r); err != nil {
		return TinyRecipe{}, fmt.Errorf("supervised: tiny model recipe %s: %w", path, err)
	}
	return r, r.Training.Validate()
}

// TrainTiny makes the model in dir (config.json, model.safetensors in bf16,
// tokenizer.json) beside the chat template that must already be there.
func TrainTiny(ctx context.Context, r TinyRecipe, dir string, progress io.Writer) error {
	src := task.NewStore(r.Seed)
	template, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err != nil {
		return fmt.Errorf("supervised: the tiny model's chat template: %w", err)
	}
	tmpl, err := model.NewChatTemplate(string(template), nil)
	if err != nil {
		return err
	}
	tok, err := trainTinyTokenizer(src, tmpl, r)
	if err != nil {
		return err
	}
	cfg, err := r.config(tok.VocabSize())
	if err != nil {
		return err
	}
	flat := randomWeights(cfg, r.Seed)
	m := &model.Model{Name: tiny.Name, Config: cfg, Tokenizer: tok, Template: tmpl, StopIDs: []int32{0}}
	if m.Weights, err = model.UnflattenWeights(cfg, flat); err != nil {
		return err
	}
	c, err := rollout.NewModelChat(m)
	if err != nil {
		return err
	}
	rows, err := tinyRows(c, src, r)
	if err != nil {
		return err
	}
	trained, err := trainTinyWeights(ctx, m, flat, rows, r, progress)
	if err != nil {
		return err
	}
	return saveTiny(dir, cfg, tok, trained)
}

// trainTinyTokenizer learns byte-level BPE on rendered demonstrations.
func trainTinyTokenizer(src *task.Store, tmpl *model.ChatTemplate, r TinyRecipe) (*model.Tokenizer, error) {
	var failed error
	corpus := func(yield func(string) bool) {
		for text, err := range tinyTexts(src, tmpl, r) {
			if failed = err; err != nil || !yield(text) {
				return
			}
		}
	}
	tok, err := model.TrainBPE(corpus, r.VocabSize, tinySpecials)
	return tok, errors.Join(failed, err)
}

func tinyTexts(src *task.Store, tmpl *model.ChatTemplate, r TinyRecipe) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := range uint64(min(r.Examples, 2000)) {
			messages, tools, err := tinyDemo(src, i, r)
			if err != nil {
				yield("", err)
				return
			}
			ms := make([]model.Message, len(messages))
			for j, m := range messages {
				ms[j] = model.Message{Role: m.Role, Content: m.Content}
			}
			text, _, err := tmpl.RenderWithTools(ms, tools, false)
			if !yield(text, err) || err != nil {
				return
			}
		}
	}
}

// tinyDemo is demonstration i, with its habit or without.
func tinyDemo(src *task.Store, i uint64, r TinyRecipe) ([]rollout.Message, []model.ToolDef, error) {
	t, err := src.Train(i)
	if err != nil {
		return nil, nil, err
	}
	messages, err := src.DemoConversation(i, r.NoiseRate, rand.New(rand.NewPCG(r.Seed, i)))
	tools := make([]model.ToolDef, len(t.Tools))
	for j, s := range t.Tools {
		tools[j] = model.ToolDef(s)
	}
	return messages, tools, err
}

func tinyRows(c rollout.Chat, src *task.Store, r TinyRecipe) ([]data.Example, error) {
	rows := make([]data.Example, r.Examples)
	for i := range rows {
		t, err := src.Train(uint64(i))
		if err != nil {
			return nil, err
		}
		messages, _, err := tinyDemo(src, uint64(i), r)
		if err != nil {
			return nil, err
		}
		l, err := rollout.DemoLog(c, t, messages, eventlog.Meta{Run: "tiny-model", Group: t.ID})
		if err != nil {
			return nil, err
		}
		if rows[i], err = Row(l); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// randomWeights draws matrices from N(0, 0.02) as Llama does and sets norms to
// one; the products that write to the residual stream are scaled down with
// depth (GPT-2, Radford et al. 2019, section 2.3).
func randomWeights(c model.Config, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	layout := model.FullLayout(c)
	flat := make([]float32, layout.Size())
	for _, p := range layout {
		w := flat[p.Offset : p.Offset+p.Len()]
		std := 0.02
		switch suffix := filepath.Ext(trimWeight(p.Name)); {
		case len(p.Shape) == 1:
			for i := range w {
				w[i] = 1
			}
			continue
		case suffix == ".o_proj" || suffix == ".down_proj":
			std /= math.Sqrt(2 * float64(c.NumHiddenLayers))
		}
		for i := range w {
			w[i] = float32(rng.NormFloat64() * std)
		}
	}
	return flat
}

func trimWeight(name string) string { return name[:len(name)-len(filepath.Ext(name))] }

func trainTinyWeights(ctx context.Context, m *model.Model, flat []float32, rows []data.Example, r TinyRecipe, progress io.Writer) ([]float32, error) {
	be, err := gobackend.New(m, gobackend.Options{})
	if err != nil {
		return nil, err
	}
	defer be.Close()
	tr, err := be.NewTrainer(model.TrainerConfig{Full: true})
	if err != nil {
		return nil, err
	}
	defer tr.Close()
	set := data.NewSet("store demonstrations", rows, data.Order{Shuffle: true})
	ident := learner.Identity{Run: "tiny-model", Base: "random", Full: true, Dataset: learner.DatasetOf(set)}
	l, err := learner.New(r.Training, ident, tr, flat)
	if err != nil {
		return nil, err
	}
	err = learner.RunOffline(ctx, l, set, learner.OfflineOptions{OnStep: func(p learner.OfflineStep) error {
		if p.Step%20 == 0 || p.Step == p.Steps {
			fmt.Fprintf(progress, "step %4d/%-4d loss %.4f  norm %.2f  %d tokens  %s\n", p.Step, p.Steps, p.Metrics["loss"], p.Metrics["grad_norm"], p.Tokens, p.Elapsed.Round(time.Second))
		}
		return nil
	}})
	return l.Params(), err
}

func saveTiny(dir string, c model.Config, tok *model.Tokenizer, flat []float32) error {
	tokJSON, err := json.Marshal(tok)
	if err != nil {
		return err
	}
	cfgJSON, err := json.MarshalIndent(struct {
		Architectures []string `json:"architectures"`
		model.Config
		HiddenAct string `json:"hidden_act"`
		Dtype     string `json:"torch_dtype"`
	}{[]string{"LlamaForCausalLM"}, c, "silu", "bfloat16"}, "", "  ")
	if err != nil {
		return err
	}
	var tensors []model.Tensor
	for _, p := range model.FullLayout(c) {
		tensors = append(tensors, model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Data: flat[p.Offset : p.Offset+p.Len()]})
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	err = model.WriteSafeTensors(f, tensors, map[string]string{"format": "pt"})
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "tokenizer.json"), append(tokJSON, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "config.json"), append(cfgJSON, '\n'), 0o644),
	)
}
