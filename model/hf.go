package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	hfConfigFile = "config.json"
	hfGenFile    = "generation_config.json"
	hfIndexFile  = "model.safetensors.index.json"
	hfModelFile  = "model.safetensors"
)

// openWeightsFS reads config.json and the weights of a HF directory.
func openWeightsFS(fsys fs.FS, o opening) (*Model, error) {
	data, err := fs.ReadFile(fsys, hfConfigFile)
	if err != nil {
		return nil, fmt.Errorf("model: read %s: %w", hfConfigFile, err)
	}
	c, eos, err := ParseConfig(data)
	if err != nil {
		return nil, err
	}
	c.RopeScaling.Long = o.long && c.RopeScaling.byLength()
	m := &Model{Config: c, StopIDs: eos}
	if err := addGenerationStops(fsys, m); err != nil {
		return nil, err
	}
	st, closer, err := openShards(fsys)
	if err != nil {
		return nil, err
	}
	st.forgetVision(c)
	s, err := st.stored(c, closer)
	if err != nil {
		closer.Close() // read only: nothing to lose
		return nil, err
	}
	return m, o.finish(m, s)
}

// addGenerationStops merges eos_token_id of generation_config.json, where
// chat models name their end-of-turn token.
func addGenerationStops(fsys fs.FS, m *Model) error {
	data, err := fs.ReadFile(fsys, hfGenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("model: read %s: %w", hfGenFile, err)
	}
	var g struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(data, &g); err != nil {
		return fmt.Errorf("%w: %s: %v", ErrFormat, hfGenFile, err)
	}
	ids, err := tokenIDs(g.EOS)
	if err != nil {
		return fmt.Errorf("%w: %s: eos_token_id: %v", ErrFormat, hfGenFile, err)
	}
	for _, id := range ids {
		if !slices.Contains(m.StopIDs, id) {
			m.StopIDs = append(m.StopIDs, id)
		}
	}
	return nil
}

// shards maps a tensor to the file that holds it.
type shards map[string]*SafeTensors

// openShards opens model.safetensors, or the files that
// model.safetensors.index.json lists. The caller closes them.
func openShards(fsys fs.FS) (st shards, files io.Closer, err error) {
	var open closers
	defer func() {
		if err != nil {
			open.Close() // read only: nothing to lose
		}
	}()
	load := func(name string) (*SafeTensors, error) {
		f, err := fsys.Open(name)
		if err != nil {
			return nil, fmt.Errorf("model: open %s: %w", name, err)
		}
		open = append(open, f)
		s, err := openSafeTensors(f)
		if err != nil {
			return nil, fmt.Errorf("model: %s: %w", name, err)
		}
		return s, nil
	}
	st = shards{}
	data, err := fs.ReadFile(fsys, hfIndexFile)
	if errors.Is(err, fs.ErrNotExist) {
		one, err := load(hfModelFile)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range one.names {
			st[n] = one
		}
		return st, open, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("model: read %s: %w", hfIndexFile, err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %v", ErrFormat, hfIndexFile, err)
	}
	byName := map[string]*SafeTensors{}
	for _, name := range slices.Sorted(maps.Keys(index.WeightMap)) {
		file := index.WeightMap[name]
		if file != path.Base(file) || !fs.ValidPath(file) {
			return nil, nil, fmt.Errorf("%w: %s: tensor %q lies in %q, which is not a plain file name", ErrFormat, hfIndexFile, name, file)
		}
		s := byName[file]
		if s == nil {
			if s, err = load(file); err != nil {
				return nil, nil, err
			}
			byName[file] = s
		}
		if !s.Has(name) {
			return nil, nil, fmt.Errorf("%w: %s says tensor %q is in %s, which doesn't hold it", ErrFormat, hfIndexFile, name, file)
		}
		st[name] = s
	}
	return st, open, nil
}

// hfUnused are tensors that some exports carry and that hold no weights.
var hfUnused = regexp.MustCompile(`\.rotary_emb\.inv_freq$`)

// hfVision are the tensors of a multimodal Gemma 3 that its text model lacks.
var hfVision = regexp.MustCompile(`^(model\.)?(vision_tower|multi_modal_projector)\.`)

func (st shards) forgetVision(c Config) {
	if c.ModelType == "gemma3_text" {
		maps.DeleteFunc(st, func(name string, _ *SafeTensors) bool { return hfVision.MatchString(name) })
	}
}

// find gives a tensor's file and its name there: multimodal Gemma 3 files hold
// the text model as language_model.model.NAME, or model.language_model.NAME.
func (st shards) find(c Config, name string) (*SafeTensors, string) {
	names := []string{name}
	if c.ModelType == "gemma3_text" {
		names = append(names, "language_model."+name)
		if inner, ok := strings.CutPrefix(name, "model."); ok {
			names = append(names, "model.language_model."+inner)
		}
	}
	for _, n := range names {
		if file := st[n]; file != nil {
			return file, n
		}
	}
	return nil, name
}

// check compares names and shapes with the configuration: every tensor of the
// architecture, and no other, must be there.
func (st shards) check(c Config) error {
	used := map[string]bool{}
	for _, s := range slots(c, &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}) {
		file, stored := st.find(c, s.name)
		if file == nil {
			return fmt.Errorf("%w: tensor %q of the architecture in config.json is missing", ErrFormat, s.name)
		}
		if got := file.tensors[stored].Shape; !slices.Equal(got, s.shape) {
			return fmt.Errorf("%w: tensor %q has shape %v, config.json wants %v", ErrFormat, s.name, got, s.shape)
		}
		// The file bounds the size of types that are known only.
		if d := DType(file.tensors[stored].DType); d.size() == 0 {
			return fmt.Errorf("%w: tensor %q: %w", ErrFormat, stored, d.refuse())
		}
		used[stored] = true
	}
	if c.TieWordEmbeddings { // some exports store the tied copy
		_, stored := st.find(c, "lm_head.weight")
		used[stored] = true
	}
	for _, name := range slices.Sorted(maps.Keys(st)) {
		if !used[name] && !hfUnused.MatchString(name) {
			return fmt.Errorf("%w: tensor %q is not part of the architecture in config.json (%s, %d layers)", ErrFormat, name, c.ModelType, c.NumHiddenLayers)
		}
	}
	return nil
}

// stored finds every base tensor. Shapes are checked first: the configuration
// may lie about sizes.
func (st shards) stored(c Config, files io.Closer) (*stored, error) {
	if err := st.check(c); err != nil {
		return nil, err
	}
	return newStored(c, files, func(t *storedTensor) error {
		file, stored := st.find(c, t.name)
		info := file.tensors[stored]
		t.stored, t.file, t.at, t.q = stored, info.file, info.offset, plainTypes[DType(info.DType)]
		t.plusOne = t.norm && c.NormPlusOne
		return nil
	})
}
