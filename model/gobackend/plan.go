package gobackend

import (
	"regexp"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// Planned is how the backend would keep one kind of projection.
type Planned struct {
	Group  string           `json:"group"`  // qkv, attention output, gate and up, down, router or head
	Stored []string         `json:"stored"` // types in the file
	Bytes  map[string]int64 `json:"bytes"`  // by form, as in Storage
}

// Plan says from a file's tensors alone how New would keep the matrices, by the
// forms that hold all values of a file type. New looks at the values and may find
// a smaller form or another of the same size, for instance where BF16 was
// widened to F32 or stored as F16.
// Tensors of no projection are left out. head is the tensor of the output layer:
// the embedding's when the two are tied.
func Plan(tensors []model.TensorInfo, tied bool) []Planned {
	type unit struct {
		forms    []string // that hold every tensor so far
		elements int64
		group    int
	}
	blocks := f32.ExactForm(f32.NewPool(1), blockLen, make([]float32, blockLen)) == f32.Q4
	units := map[string]*unit{}
	var order []string
	stored := make([][]string, len(planGroups))
	for _, t := range tensors {
		for g, group := range planGroups {
			m := group.name.FindStringSubmatch(t.Name)
			if m == nil && !(g == headGroup && tied && embeddingName.MatchString(t.Name)) {
				continue
			}
			key := group.Group
			if len(m) > 1 {
				key += m[1] // matrices of one layer, or expert, are kept together
			}
			u := units[key]
			if u == nil {
				u = &unit{forms: []string{"q4", "q8", "bf16", "f16", "f32"}, group: g}
				units[key] = u
				order = append(order, key)
			}
			holds := planForms[t.DType]
			if in := t.Shape[len(t.Shape)-1]; !blocks || in%blockLen != 0 {
				holds = strings.NewReplacer("q4", "", "q8", "").Replace(holds)
			}
			u.forms = slices.DeleteFunc(u.forms, func(f string) bool { return f != "f32" && !strings.Contains(" "+holds+" ", " "+f+" ") })
			u.elements += int64(t.Len())
			if !slices.Contains(stored[g], t.DType) {
				stored[g] = append(stored[g], t.DType)
			}
			break
		}
	}
	var out []Planned
	for g, group := range planGroups {
		p := Planned{Group: group.Group, Stored: stored[g], Bytes: map[string]int64{}}
		for _, key := range order {
			if u := units[key]; u.group == g {
				p.Bytes[u.forms[0]] += u.elements * planBits[u.forms[0]] / 16
			}
		}
		if len(p.Bytes) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// blockLen is how many numbers share a scale in the block forms.
const blockLen = 32

// planForms are the forms that hold every value of a file's type.
var planForms = map[string]string{
	"BF16": "bf16", "F16": "f16", "Q4_0": "q4 q8", "Q4_1": "q4", "Q5_0": "q8", "Q8_0": "q8", "IQ4_NL": "q8",
}

// planBits are twice the bits of a number in each form, without padding.
var planBits = map[string]int64{"q4": 10, "q8": 17, "bf16": 32, "f16": 32, "f32": 64}

const headGroup = 5

// planGroups have the names of tensors in Hugging Face and GGUF files; group 1 of
// a name is the layer and expert.
var planGroups = []struct {
	Group string
	name  *regexp.Regexp
}{
	{"qkv", regexp.MustCompile(`(?:layers|blk)\.(\d+)\.(?:self_attn\.(?:q|k|v|qkv)_proj|attn_(?:q|k|v|qkv))\.weight$`)},
	{"attention output", regexp.MustCompile(`(?:layers|blk)\.(\d+)\.(?:self_attn\.o_proj|attn_output)\.weight$`)},
	{"gate and up", regexp.MustCompile(`(?:layers|blk)\.(\d+\.(?:mlp\.|block_sparse_moe\.)?(?:experts\.\d+\.)?)(?:gate_proj|up_proj|gate_up_proj|w1|w3|ffn_(?:gate|up)(?:_exps)?)\.weight$`)},
	{"down", regexp.MustCompile(`(?:layers|blk)\.(\d+\.(?:mlp\.|block_sparse_moe\.)?(?:experts\.\d+\.)?)(?:down_proj|w2|ffn_down(?:_exps)?)\.weight$`)},
	{"router", regexp.MustCompile(`(?:layers|blk)\.(\d+)\.(?:mlp\.gate|block_sparse_moe\.gate|ffn_gate_inp)\.weight$`)},
	{"head", regexp.MustCompile(`^(?:lm_head|output)\.weight$`)},
}

var embeddingName = regexp.MustCompile(`(?:^|\.)(?:embed_tokens|token_embd)\.weight$`)
