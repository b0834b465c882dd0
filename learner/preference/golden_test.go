package preference

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Golden numbers were computed by TRL in float64; see doc.go.
const tol = 1e-9

type tensor struct {
	Shape []int
	Data  []float64
}

func (x tensor) rows() [][]float64 {
	w := len(x.Data) / x.Shape[0]
	out := make([][]float64, x.Shape[0])
	for i := range out {
		out[i] = x.Data[i*w : (i+1)*w]
	}
	return out
}

func load(t testing.TB, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, into))
}

type dpoCase struct {
	Name       string
	Dtype      string
	Types      []string  `json:"loss_types"`
	Weights    []float64 `json:"loss_weights"`
	Beta       float64
	Smoothing  float64  `json:"label_smoothing"`
	Divergence string   `json:"f_divergence_type"`
	Alpha      float64  `json:"f_alpha"`
	LDAlpha    *float64 `json:"ld_alpha"`
	Weighting  bool     `json:"use_weighting"`
	Tau        float64  `json:"discopop_tau"`
	Loss       float64
	Grad       tensor `json:"grad_logps"`
	Metrics    map[string]float64
}

func (c dpoCase) config() DPOConfig {
	d := DefaultDPOConfig()
	d.LossTypes, d.LossWeights, d.Beta, d.LabelSmoothing, d.FDivergence, d.FAlpha = c.Types, c.Weights, c.Beta, c.Smoothing, c.Divergence, c.Alpha
	d.LDAlpha, d.DiscopopTau = c.LDAlpha, c.Tau
	if c.Weighting {
		d.Weighting = WeightingWPOAligned
	}
	return d
}

// dpoInputs has 8 sequences: rows 0..3 chosen, 4..7 rejected.
func dpoInputs(t testing.TB) (seqs []Seq, cases []dpoCase) {
	var g struct {
		Inputs struct {
			LogP tensor `json:"logps"`
			Ref  tensor `json:"ref_logps"`
			Sq   tensor `json:"log_sum_sq_probs"`
			Mask tensor `json:"completion_mask"`
		}
		Cases []dpoCase
	}
	load(t, "dpo.json", &g)
	lp, ref, sq, mask := g.Inputs.LogP.rows(), g.Inputs.Ref.rows(), g.Inputs.Sq.rows(), g.Inputs.Mask.rows()
	for i := range lp {
		s := Seq{LogP: lp[i], Ref: ref[i], LogSumSq: sq[i], Mask: make([]bool, len(lp[i]))}
		for k := range s.Mask {
			s.Mask[k] = mask[i][k+1] == 1
		}
		seqs = append(seqs, s)
	}
	return seqs, g.Cases
}

func pairsOf(seqs []Seq) []Pair {
	n := len(seqs) / 2
	out := make([]Pair, n)
	for i := range out {
		out[i] = Pair{seqs[i], seqs[n+i]}
	}
	return out
}

// masked keeps a golden derivative where the mask is on: TRL sums the zeros
// outside the completion too, so its leaf has a derivative there.
func masked(s Seq, d []float64) []float64 {
	out := make([]float64, len(d))
	for t := range d {
		if s.on(t) {
			out[t] = d[t]
		}
	}
	return out
}

func dpo(t testing.TB, c DPOConfig, pairs []Pair) DPOResult {
	t.Helper()
	tot, err := NewDPOTotals(pairs)
	require.NoError(t, err)
	res, err := DPO(c, pairs, tot)
	require.NoError(t, err)
	return res
}

func TestDPOEqualsTRL(t *testing.T) {
	seqs, cases := dpoInputs(t)
	require.Len(t, cases, 44)
	pairs := pairsOf(seqs)
	seen := map[string]bool{"simpo": true, "orpo": true} // not in TRL's DPOTrainer
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			tol := tol
			if c.Dtype == "torch.float32" {
				tol = 1e-5
			}
			for _, lt := range c.Types {
				seen[lt] = true
			}
			cfg := c.config()
			res := dpo(t, cfg, pairs)
			require.InDelta(t, c.Loss, res.Loss, tol)
			want := c.Grad.rows()
			for i, g := range res.DLogP {
				require.InDeltaSlice(t, masked(pairs[i].Chosen, want[i]), g.Chosen, tol, "chosen %d", i)
				require.InDeltaSlice(t, masked(pairs[i].Rejected, want[4+i]), g.Rejected, tol, "rejected %d", i)
			}
			m := res.Stats.Metrics(cfg)
			for k, v := range c.Metrics {
				require.InDelta(t, v, m[k], max(tol, 1e-7), k) // TRL's accuracies are float32
			}
		})
	}
	for _, lt := range DPOTypes() {
		require.True(t, seen[lt], lt)
	}
}

// rpo_alpha is the sft term by another name.
func TestRPOAlphaIsTheSFTTerm(t *testing.T) {
	seqs, _ := dpoInputs(t)
	a, b := DefaultDPOConfig(), DefaultDPOConfig()
	a.RPOAlpha = .7
	b.LossTypes, b.LossWeights = []string{"sigmoid", SFTTerm}, []float64{1, .7}
	ra, rb := dpo(t, a, pairsOf(seqs)), dpo(t, b, pairsOf(seqs))
	require.Equal(t, rb.Loss, ra.Loss)
	require.Equal(t, rb.DLogP, ra.DLogP)
	require.Equal(t, rb.Stats.Metrics(b), ra.Stats.Metrics(a))
	require.Contains(t, ra.Stats.Metrics(a), "loss/sft")
}

func TestKTOEqualsTRL(t *testing.T) {
	var g struct {
		Inputs map[string]tensor
		Cases  []struct {
			Name        string
			LossType    string `json:"loss_type"`
			Beta        float64
			Desirable   float64 `json:"desirable_weight"`
			Undesirable float64 `json:"undesirable_weight"`
			Label       tensor
			Loss        float64
			Grad        tensor `json:"grad_logps"`
			KL          float64
		}
	}
	load(t, "kto.json", &g)
	require.Len(t, g.Cases, 8)
	seqs, _ := dpoInputs(t)
	var mismatched []Seq // known as sums: a token each
	for i, x := range g.Inputs["kl_logps_seq"].Data {
		mismatched = append(mismatched, Seq{LogP: []float64{x}, Ref: []float64{g.Inputs["ref_kl_logps_seq"].Data[i]}})
	}
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			cfg := KTOConfig{LossType: c.LossType, Beta: c.Beta, DesirableWeight: c.Desirable, UndesirableWeight: c.Undesirable}
			tot := KTOTotals{Rows: 8}
			if cfg.NeedsKL() {
				kl, err := KTOKL(mismatched)
				require.NoError(t, err)
				tot.KL = kl
			}
			require.InDelta(t, c.KL, tot.KL, tol)
			var rows []Unpaired
			for i, s := range seqs {
				require.InDelta(t, g.Inputs["ref_logps_seq"].Data[i], s.sum(s.Ref), tol)
				rows = append(rows, Unpaired{Seq: s, Desirable: c.Label.Data[i] == 1})
			}
			res, err := KTO(cfg, rows, tot)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			for i, want := range c.Grad.rows() {
				require.InDeltaSlice(t, masked(seqs[i], want), res.DLogP[i], tol, "row %d", i)
			}
			m := res.Stats.Metrics()
			require.InDelta(t, res.Loss, res.Stats.DesirableLoss+res.Stats.UndesirableLoss, tol)
			if res.Stats.Undesirable == 0 {
				require.NotContains(t, m, "rewards/margins")
			} else {
				require.InDelta(t, m["rewards/chosen"]-m["rewards/rejected"], m["rewards/margins"], tol)
			}
		})
	}
}

// The running mean goes on over three steps; both rules for the shift agree
// where classes are even.
func TestBCOEqualsTRL(t *testing.T) {
	var g struct {
		Cases []struct {
			Name           string
			Beta           float64
			PolicyChosen   tensor `json:"policy_chosen"`
			PolicyRejected tensor `json:"policy_rejected"`
			RefChosen      tensor `json:"ref_chosen"`
			RefRejected    tensor `json:"ref_rejected"`
			Losses         tensor
			Delta          struct{ Data float64 } `json:"delta_running_mean"`
			Std            float64                `json:"running_std"`
			Loss           float64
			GradChosen     tensor `json:"grad_chosen"`
			GradRejected   tensor `json:"grad_rejected"`
		}
	}
	load(t, "bco.json", &g)
	require.Len(t, g.Cases, 3)
	for _, rule := range []string{ShiftPooled, ShiftClassMeans} {
		var st BCOState
		for _, c := range g.Cases {
			cfg := BCOConfig{Beta: c.Beta, Shift: rule}
			var rows []Unpaired
			add := func(lp, ref tensor, good bool) {
				for i := range lp.Data {
					rows = append(rows, Unpaired{Seq: Seq{LogP: []float64{lp.Data[i]}, Ref: []float64{ref.Data[i]}}, Desirable: good})
				}
			}
			add(c.PolicyChosen, c.RefChosen, true)
			add(c.PolicyRejected, c.RefRejected, false)
			tot, next, err := NewBCOTotals(cfg, st, rows)
			require.NoError(t, err)
			raw, err := json.Marshal(next) // a checkpoint keeps every bit
			require.NoError(t, err)
			st = BCOState{}
			require.NoError(t, json.Unmarshal(raw, &st))
			require.Equal(t, next, st)
			require.InDelta(t, c.Delta.Data, tot.Shift, 1e-8, "%s %s", rule, c.Name) // TRL keeps it in float32
			require.InDelta(t, c.Std, st.Pooled().Std(), 1e-7)
			tot.Shift = c.Delta.Data // the loss itself is float64
			res, err := BCO(cfg, rows, tot)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			for i, want := range append(c.GradChosen.Data, c.GradRejected.Data...) {
				require.InDelta(t, want, res.DLogP[i][0], tol, "%s row %d", c.Name, i)
			}
			for i := range rows {
				one, err := BCO(cfg, rows[i:i+1], tot)
				require.NoError(t, err)
				require.InDelta(t, c.Losses.Data[i], one.Loss*8, tol)
			}
		}
	}
}

func TestRewardEqualsTRL(t *testing.T) {
	var cases []struct {
		Name   string
		Scores tensor
		Margin *tensor
		Center *float64
		Loss   float64
		Grad   tensor
	}
	load(t, "reward.json", &cases)
	require.Len(t, cases, 4)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var cfg RewardConfig
			if c.Center != nil {
				cfg.Center = *c.Center
			}
			pairs := make([]ScorePair, 4)
			for i := range pairs {
				pairs[i] = ScorePair{Chosen: c.Scores.Data[i], Rejected: c.Scores.Data[4+i]}
				if c.Margin != nil {
					pairs[i].Margin = c.Margin.Data[i]
				}
			}
			res, err := Reward(cfg, pairs, 4)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			require.InDeltaSlice(t, c.Grad.Data, append(res.DChosen, res.DRejected...), tol)
			m := res.Stats.Metrics()
			sum, lo, hi := 0.0, math.Inf(1), math.Inf(-1)
			for _, s := range c.Scores.Data {
				sum, lo, hi = sum+s/8, min(lo, s), max(hi, s)
			}
			require.InDelta(t, sum, m["mean_reward"], tol)
			require.Equal(t, []float64{lo, hi}, []float64{m["min_reward"], m["max_reward"]})
		})
	}
}
