package model

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every family's adapter as peft wrote it: read, written, read again.
func TestFamilyAdapters(t *testing.T) {
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			m := openFamily(t, name)
			a, err := LoadAdapter(filepath.Join(familiesDir, name), m.Config)
			require.NoError(t, err)
			require.Equal(t, name == "qwen3", a.LoRA.RSLoRA)
			if name != "mistral" {
				require.Equal(t, m.Config.Projections(), a.LoRA.Targets, "in the order of the layout")
				require.True(t, a.LoRA.Equal(LoRAConfig{Rank: a.LoRA.Rank, Alpha: a.LoRA.Alpha, RSLoRA: a.LoRA.RSLoRA, Targets: []string{AllLinear}}.Resolve(m.Config)))
			}
			dir := t.TempDir()
			if out := os.Getenv("SKEIN_SAVE_OUT"); out != "" { // see TestSaveFamilies
				dir = filepath.Join(out, name, "adapter")
			}
			require.NoError(t, a.Save(dir, m.Config, name))
			b, err := LoadAdapter(dir, m.Config)
			require.NoError(t, err)
			require.Equal(t, a.Params, b.Params)
			blob, err := DecodeAdapter(a.Encode())
			require.NoError(t, err)
			require.NoError(t, blob.Check(m.Config))

			a.BaseDigest = m.Digest
			merged, err := m.Merge(a)
			require.NoError(t, err)
			l, was := merged.Layers[1], m.Weights.Layers[1]
			require.NotEqual(t, was.Q, l.Q)
			if m.Config.FusedProjections {
				require.Equal(t, l.QKV, slices.Concat(l.Q, l.K, l.V), "the parts follow the merged whole")
				require.Equal(t, l.GateUp, slices.Concat(l.Gate, l.Up))
				require.NotEqual(t, was.GateUp, l.GateUp)
			}
			mem, err := m.Config.TrainingMemory(a.LoRA, 2, 16)
			require.NoError(t, err)
			require.Equal(t, int64(16*len(a.Params)), mem.Adapter)
		})
	}
}

func TestLoRATargets(t *testing.T) {
	phi, moe, llama := openFamily(t, "phi4").Config, openFamily(t, "mixtral").Config, openFamily(t, "llama2").Config
	all := LoRAConfig{Rank: 2, Alpha: 2, Targets: []string{AllLinear}}
	require.NoError(t, all.Validate())
	require.Equal(t, []string{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}, all.Resolve(phi).Targets)
	require.Equal(t, []string{"q_proj", "k_proj", "v_proj", "o_proj"}, all.Resolve(moe).Targets)
	require.Equal(t, Projections, all.Resolve(llama).Targets)
	require.Equal(t, []string{AllLinear}, all.Targets, "the receiver is left alone")
	a, err := NewAdapter(phi, all, "", 1)
	require.NoError(t, err)
	require.NoError(t, a.Check(phi))
	require.ErrorContains(t, a.Check(llama), `this model (llama) has no "qkv_proj" that can be adapted (it has [q_proj k_proj`)
	_, err = LoRALayout(phi, all)
	require.ErrorContains(t, err, "resolve it", "a layout of names that nobody has would be silently empty")
	for want, tc := range map[string]struct {
		c       Config
		targets []string
	}{
		`this model (phi3) has no "q_proj" that can be adapted (it has [qkv_proj o_proj gate_up_proj down_proj])`: {phi, []string{"o_proj", "q_proj"}},
		`this model (mixtral) has no "gate_proj"`:               {moe, []string{"gate_proj"}},
		`unknown projection "lm_head"`:                          {llama, []string{"lm_head"}},
		`"all-linear" stands with others`:                       {llama, []string{AllLinear, "q_proj"}},
		"targets is empty, want \"all-linear\" or at least one": {llama, nil},
	} {
		_, err := NewAdapter(tc.c, LoRAConfig{Rank: 1, Alpha: 1, Targets: tc.targets}, "", 1)
		require.ErrorContains(t, err, want)
	}
	// peft's own word for it.
	lora, _, err := parsePEFTConfig([]byte(`{"peft_type":"LORA","r":2,"lora_alpha":2,"target_modules":"all-linear"}`))
	require.NoError(t, err)
	require.Equal(t, Projections, lora.Resolve(llama).Targets)
	layout, err := LoRALayout(phi, all.Resolve(phi))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(layout[0].Name, "layers.0.self_attn.qkv_proj.lora_A.weight"))
	require.Equal(t, []int{2*kvDim(phi) + qDim(phi), 2}, layout[1].Shape)
}

// An adapter that peft trained on a multimodal Gemma 3 names the text model
// inside.
func TestMultimodalGemmaAdapter(t *testing.T) {
	c := openFamily(t, "gemma3").Config
	want, err := LoadAdapter(filepath.Join(familiesDir, "gemma3"), c)
	require.NoError(t, err)
	layout, err := LoRALayout(c, want.LoRA)
	require.NoError(t, err)
	for _, prefix := range []string{"base_model.model.model.language_model.", "base_model.model.language_model.model."} {
		dir := t.TempDir()
		require.NoError(t, want.Save(dir, c, ""))
		var tensors []Tensor
		for _, p := range layout {
			inner, ok := strings.CutPrefix(p.Name, "base_model.model.model.")
			require.True(t, ok)
			tensors = append(tensors, Tensor{Name: prefix + inner, Shape: p.Shape, Data: want.Params[p.Offset : p.Offset+p.Len()]})
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, peftWeightsFile), writeST(t, tensors, nil), 0o644))
		got, err := LoadAdapter(dir, c)
		require.NoError(t, err)
		require.Equal(t, want.Params, got.Params)
	}
}
