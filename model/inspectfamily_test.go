package model

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Headers alone tell of every family what Open would load, and what it would
// refuse.
func TestInspectFamilies(t *testing.T) {
	for _, name := range families(t) {
		info, err := Inspect(filepath.Join(familiesDir, name))
		require.NoError(t, err)
		require.NoError(t, info.Problem, name)
		require.Equal(t, info.Config.NumParams(), info.Params, name)
		require.Equal(t, 4*info.Params, info.Bytes, name)
		require.Equal(t, openFamily(t, name).Config, info.Config)
	}
	files, err := filepath.Glob("testdata/gguf/*.gguf")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		info, err := Inspect(path)
		require.NoError(t, err)
		require.NoError(t, info.Problem, path)
		factors := int64(0)
		for _, x := range info.Tensors {
			for _, name := range ggufRopeTensors {
				if x.Name == name {
					factors += int64(x.Len())
				}
			}
		}
		require.Equal(t, info.Config.NumParams()+factors, info.Params, path)
	}

	// A configuration of another model beside the tensors.
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(familiesDir, "qwen3", hfModelFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, hfModelFile), data, 0o644))
	for config, want := range map[string]string{
		"qwen2":  "has shape", // other heads
		"llama3": "is not part of the architecture in config.json (llama, 2 layers)",
		"gemma2": `tensor "model.layers.0.pre_feedforward_layernorm.weight" of the architecture in config.json is missing`,
	} {
		data, err := os.ReadFile(filepath.Join(familiesDir, config, hfConfigFile))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, hfConfigFile), data, 0o644))
		info, err := Inspect(dir)
		require.NoError(t, err)
		require.ErrorContains(t, info.Problem, want)
		_, err = Open(dir)
		require.EqualError(t, err, "model: open "+dir+": "+info.Problem.Error(), "Open says the same")
	}
}

// Every tensor of every family is needed, and of the shape that it has.
func TestFamilyTensorsMatter(t *testing.T) {
	for _, name := range families(t) {
		m := openFamily(t, name)
		st := shards{}
		file := &SafeTensors{tensors: map[string]TensorInfo{}}
		for _, s := range slots(m.Config, m.Weights) {
			file.tensors[s.name] = TensorInfo{Name: s.name, DType: "F32", Shape: s.shape}
			st[s.name] = file
		}
		require.NoError(t, st.check(m.Config))
		for _, s := range slots(m.Config, m.Weights) {
			without := maps.Clone(st)
			delete(without, s.name)
			require.ErrorContains(t, without.check(m.Config), s.name)
			was := file.tensors[s.name]
			file.tensors[s.name] = TensorInfo{Name: s.name, DType: "F32", Shape: append([]int{1}, was.Shape...)}
			require.ErrorContains(t, st.check(m.Config), s.name)
			file.tensors[s.name] = was
		}
		st["model.layers.0.self_attn.extra.weight"] = file
		require.ErrorContains(t, st.check(m.Config), "extra.weight")
	}
}
