package loss

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Golden numbers were computed by TRL 1.16 in float64; see doc.go.
const tol = 1e-9

type tensor struct {
	Shape []int
	Data  []*float64
}

// rows cuts [B, T] (or [B]) into B slices; null is NaN.
func (x tensor) rows() [][]float64 {
	b := x.Shape[0]
	w := len(x.Data) / b
	out := make([][]float64, b)
	for i := range out {
		for _, v := range x.Data[i*w : (i+1)*w] {
			f := math.NaN()
			if v != nil {
				f = *v
			}
			out[i] = append(out[i], f)
		}
	}
	return out
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, into))
}

type grpoCase struct {
	Name               string
	LossType           string   `json:"loss_type"`
	Beta               float64  `json:"beta"`
	Low                float64  `json:"epsilon_low"`
	High               float64  `json:"epsilon_high"`
	Delta              *float64 `json:"delta"`
	Level              string   `json:"importance_sampling_level"`
	ToolMask           bool     `json:"tool_mask"`
	OldIsNone          bool     `json:"old_is_none"`
	BiasKL             bool     `json:"use_bias_correction_kl"`
	RolloutIS          *string  `json:"rollout_is_ratio"`
	OffMask            *float64 `json:"off_policy_mask_threshold"`
	TopQ               float64  `json:"top_entropy_quantile"`
	EntCoef            float64  `json:"entropy_coef"`
	Accum              float64  `json:"gradient_accumulation_steps"`
	StepsPerGeneration float64  `json:"steps_per_generation"`
	MaxLen             int      `json:"max_completion_length"`
	Advantages         tensor
	Loss               float64
	GradLogps          tensor  `json:"grad_logps"`
	GradEntropy        *tensor `json:"grad_entropy"`
	Metrics            map[string]float64
}

type grpoGolden struct {
	Inputs    map[string]tensor
	Cases     []grpoCase
	RolloutIS []struct {
		Name    string
		Mode    string
		ClipMin *float64 `json:"clip_min"`
		ClipMax *float64 `json:"clip_max"`
		Ratio   tensor
	} `json:"rollout_is"`
}

func (g grpoGolden) mask(tool bool) [][]bool {
	c, tm := g.Inputs["completion_mask"].rows(), g.Inputs["tool_mask"].rows()
	out := make([][]bool, len(c))
	for i := range c {
		for t := range c[i] {
			out[i] = append(out[i], c[i][t] == 1 && (!tool || tm[i][t] == 1))
		}
	}
	return out
}

// step builds the configuration and rows of a case. Accumulation over k equal
// micro-batches is a step with k times the rows and tokens.
func (g grpoGolden) step(t *testing.T, c grpoCase) (Config, []Row, Totals) {
	cfg := Config{LossType: c.LossType, Level: c.Level, EpsilonLow: c.Low, EpsilonHigh: c.High, Delta: c.Delta, Beta: c.Beta,
		BiasCorrectedKL: c.BiasKL, MaxCompletionLength: c.MaxLen, OffPolicyMaskThreshold: c.OffMask,
		TopEntropyQuantile: c.TopQ, EntropyCoef: c.EntCoef, Denominator: DenominatorFixed}
	d := DefaultConfig()
	cfg.SAPOTemperaturePos, cfg.SAPOTemperatureNeg = d.SAPOTemperaturePos, d.SAPOTemperatureNeg
	cfg.VESPOKPos, cfg.VESPOLambdaPos, cfg.VESPOKNeg, cfg.VESPOLambdaNeg = d.VESPOKPos, d.VESPOLambdaPos, d.VESPOKNeg, d.VESPOLambdaNeg
	lp, old, ref, ent := g.Inputs["logps"].rows(), g.Inputs["old"].rows(), g.Inputs["ref"].rows(), g.Inputs["entropy"].rows()
	adv, mask := c.Advantages.rows(), g.mask(c.ToolMask)
	rows := make([]Row, len(lp))
	for i := range rows {
		rows[i] = Row{LogP: lp[i], Entropy: ent[i], Mask: mask[i], Adv: adv[i]}
		if !c.OldIsNone {
			rows[i].Old = old[i]
		}
		if c.Beta != 0 {
			rows[i].Ref = ref[i]
		}
		if c.OffMask != nil {
			rows[i].Sampling = old[i]
		}
		if c.RolloutIS != nil {
			rows[i].Ratio = g.Inputs["is_ratio_"+*c.RolloutIS].rows()[i]
			if c.LossType == "vespo" {
				foldPadding(rows[i])
			}
		}
	}
	tot, err := NewTotals(cfg, rows)
	require.NoError(t, err)
	tot.Rows *= c.Accum
	tot.EntropyTokens *= c.Accum
	switch c.LossType {
	case "dapo", "cispo", "vespo":
		tot.Tokens *= c.Accum / c.StepsPerGeneration
	default:
		tot.Tokens *= c.Accum
	}
	return cfg, rows, tot
}

// foldPadding moves the weights of masked tokens into a counted one: TRL's vespo
// sums them over the whole width, which is harmless there because its own
// weights are 1 outside the mask, unlike the golden file's random ones.
func foldPadding(r Row) {
	first := -1
	for t := range r.LogP {
		if r.on(t) {
			first = t
			break
		}
	}
	for t := range r.LogP {
		if !r.on(t) {
			r.Ratio[first] *= r.Ratio[t]
		}
	}
}

func TestGRPOFamilyEqualsTRL(t *testing.T) {
	var g grpoGolden
	load(t, "grpo.json", &g)
	require.Len(t, g.Cases, 49)
	seen := map[string]int{}
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			seen[c.LossType]++
			cfg, rows, tot := g.step(t, c)
			res, err := Compute(cfg, rows, tot)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			for i, want := range c.GradLogps.rows() {
				require.InDeltaSlice(t, want, res.DLogP[i], tol, "row %d", i)
			}
			require.Equal(t, c.GradEntropy != nil, res.DEntropy != nil)
			if c.GradEntropy != nil {
				for i, want := range c.GradEntropy.rows() {
					require.InDeltaSlice(t, want, res.DEntropy[i], tol, "row %d", i)
				}
			}
			got := res.Stats.Metrics(cfg)
			got["policy_loss"] = res.PolicyLoss
			for k, v := range c.Metrics {
				require.InDelta(t, v, got[k], 1e-7, k) // TRL's clip ratios are float32
			}
		})
	}
	for _, lt := range Types() {
		if lt != "rloo" { // rloo.json
			require.NotZero(t, seen[lt], lt)
		}
	}
}

// The derivative is that of the loss: central differences on every input.
func TestGRPOGradientIsTheDerivative(t *testing.T) {
	var g grpoGolden
	load(t, "grpo.json", &g)
	const h = 1e-6
	for _, c := range g.Cases {
		if c.OldIsNone || c.LossType == "cispo" || c.LossType == "vespo" {
			continue // part of the value is held constant, so the gradient is by definition not its derivative
		}
		cfg, rows, tot := g.step(t, c)
		cfg.TopEntropyQuantile = 1 // a token on the threshold would flip
		tot.EntropyFloor = math.Inf(-1)
		res, err := Compute(cfg, rows, tot)
		require.NoError(t, err)
		eval := func(i, k int, d float64) float64 {
			moved := rows[i]
			lp := append([]float64(nil), moved.LogP...)
			lp[k] += d
			moved.LogP = lp
			all := append([]Row(nil), rows...)
			all[i] = moved
			r, err := Compute(cfg, all, tot)
			require.NoError(t, err)
			return r.Loss
		}
		for i := range rows {
			for k := range rows[i].LogP {
				num := (eval(i, k, h) - eval(i, k, -h)) / (2 * h)
				require.InDelta(t, num, res.DLogP[i][k], 1e-6, "%s row %d token %d", c.Name, i, k)
			}
		}
	}
}

func TestRolloutImportanceEqualsTRL(t *testing.T) {
	var g grpoGolden
	load(t, "grpo.json", &g)
	require.Len(t, g.RolloutIS, 8)
	old, samp, mask := g.Inputs["old"].rows(), g.Inputs["sampling_logps"].rows(), g.mask(true)
	for _, c := range g.RolloutIS {
		t.Run(c.Name, func(t *testing.T) {
			is := RolloutIS{Mode: c.Mode, ClipMin: c.ClipMin, ClipMax: c.ClipMax}
			for i, want := range c.Ratio.rows() {
				got, err := is.Ratio(old[i], samp[i], mask[i])
				require.NoError(t, err)
				require.InDeltaSlice(t, want, got, tol, "row %d", i)
			}
		})
	}
}

func TestSFTEqualsTRL(t *testing.T) {
	var g struct {
		Inputs map[string]tensor
		SFT    []struct {
			Name     string
			LossType string   `json:"loss_type"`
			Items    *float64 `json:"num_items_in_batch"`
			Loss     float64
			Grad     tensor `json:"grad_logps"`
		}
		WCE []struct {
			Name       string
			Weighted   bool
			Loss       float64
			Smoothing  float64 `json:"label_smoothing"`
			GradLogits tensor  `json:"grad_logits"`
		} `json:"weighted_ce"`
	}
	load(t, "sft.json", &g)
	lp, mask := g.Inputs["logps"].rows(), g.Inputs["label_mask"].rows()
	for _, c := range g.SFT {
		t.Run(c.Name, func(t *testing.T) {
			// TRL's leaf has log-probability 0 outside the mask and a gradient there
			// too, so weigh every token and divide by what TRL divides by.
			var rows, masked []SFTRow
			for i := range lp {
				rows = append(rows, SFTRow{LogP: lp[i]})
				masked = append(masked, SFTRow{LogP: lp[i], Weight: mask[i]})
			}
			total := SFTWeight(masked)
			if c.Items != nil {
				total = *c.Items
			}
			res, err := SFT(c.LossType, rows, total)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			for i, want := range c.Grad.rows() {
				require.InDeltaSlice(t, want, res.DLogP[i], tol)
			}
			m, err := SFT(c.LossType, masked, total)
			require.NoError(t, err)
			require.InDelta(t, c.Loss, m.Loss, tol)
		})
	}
	require.Len(t, g.WCE, 4)
	logits, labels, weights := g.Inputs["logits"].rows(), g.Inputs["labels"].rows(), g.Inputs["weights"].rows()
	for _, c := range g.WCE {
		t.Run(c.Name, func(t *testing.T) {
			V := len(logits[0]) / len(labels[0])
			var rows []SFTRow
			var mean, probs [][]float64
			for i := range labels {
				r, ms := SFTRow{}, []float64{}
				for k, y := range labels[i] {
					lp := logSoftmax(logits[i][k*V : (k+1)*V])
					w := 1.0
					if c.Weighted {
						w = weights[i][k]
					}
					if y == -100 {
						w, y = 0, 0
					}
					m := 0.0
					for _, x := range lp {
						m += x / float64(V)
					}
					r.LogP, r.Weight, ms = append(r.LogP, lp[int(y)]), append(r.Weight, w), append(ms, m)
					probs = append(probs, lp)
				}
				rows, mean = append(rows, r), append(mean, ms)
			}
			res, err := SmoothedSFT(c.Smoothing, rows, mean, SFTWeight(rows))
			require.NoError(t, err)
			require.InDelta(t, c.Loss, res.Loss, tol)
			for i := range labels { // the chain into the logits, which a head would run
				for k, y := range labels[i] {
					for v := range V {
						p := math.Exp(probs[i*len(labels[i])+k][v])
						want := c.GradLogits.Data[(i*len(labels[i])+k)*V+v]
						got := res.DLogP[i][k]*(b2f(float64(v) == y)-p) + res.DMeanLogP[i][k]*(1/float64(V)-p)
						require.InDelta(t, *want, got, tol, "row %d token %d logit %d", i, k, v)
					}
				}
			}
			if c.Smoothing == 0 {
				plain, err := SFT(NLL, rows, SFTWeight(rows))
				require.NoError(t, err)
				require.Equal(t, plain, res.SFTResult)
			}
		})
	}
	_, err := SmoothedSFT(1, nil, nil, 1)
	require.ErrorContains(t, err, "label_smoothing: 1 is outside")
	_, err = SmoothedSFT(.1, []SFTRow{{LogP: []float64{-1}}}, [][]float64{{math.Inf(-1)}}, 1)
	require.ErrorContains(t, err, "row 0 token 0: mean log-probability is -Inf")
}

func logSoftmax(z []float64) []float64 {
	sum := 0.0
	for _, x := range z {
		sum += math.Exp(x)
	}
	out := make([]float64, len(z))
	for i, x := range z {
		out[i] = x - math.Log(sum)
	}
	return out
}

func TestRLOOEqualsTRL(t *testing.T) {
	var g grpoGolden
	load(t, "grpo.json", &g)
	var c struct {
		Loss    float64
		Grad    tensor `json:"grad_logps"`
		Metrics map[string]float64
	}
	load(t, "rloo.json", &c)
	cfg := DefaultConfig()
	cfg.LossType, cfg.Level = "rloo", LevelSum
	lp, old, ent, adv, mask := g.Inputs["logps"].rows(), g.Inputs["old"].rows(), g.Inputs["entropy"].rows(), g.Inputs["adv"].rows(), g.mask(false)
	var rows []Row
	for i := range lp {
		rows = append(rows, Row{LogP: lp[i], Old: old[i], Entropy: ent[i], Adv: adv[i], Mask: mask[i]})
	}
	res := compute(t, cfg, rows...)
	require.InDelta(t, c.Loss, res.Loss, tol)
	for i, want := range c.Grad.rows() {
		require.InDeltaSlice(t, want, res.DLogP[i], tol, "row %d", i)
	}
	got := res.Stats.Metrics(cfg)
	require.Len(t, c.Metrics, 6)
	for k, v := range c.Metrics {
		require.InDelta(t, v, got[k], 1e-7, k)
	}
	cfg.Level, cfg.Beta = LevelToken, .1
	require.ErrorContains(t, cfg.Validate(), `importance_sampling_level: "token", but rloo's action is the whole completion`)
	require.ErrorContains(t, cfg.Validate(), "beta: 0.1 in the loss")
}
