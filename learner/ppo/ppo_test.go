package ppo

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/learner/loss"
)

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

type golden struct {
	Inputs struct {
		Old    tensor `json:"old_logps"`
		Ref    tensor `json:"ref_logps"`
		Values tensor
		Scores tensor
		Last   tensor `json:"sequence_lengths"` // index of the last kept token
	}
	PPO []struct {
		Name      string
		Estimator string  `json:"kl_estimator"`
		KLCoef    float64 `json:"kl_coef"`
		Whiten    bool    `json:"whiten_rewards"`
		Gamma     float64
		Lam       float64
		Clip      float64 `json:"cliprange"`
		ClipValue float64 `json:"cliprange_value"`
		VFCoef    float64 `json:"vf_coef"`
		Rewards   tensor
		Adv       tensor `json:"advantages_whitened"`
		Returns   tensor
		PG        float64 `json:"pg_loss"`
		VF        float64 `json:"vf_loss"`
		ClipFrac  float64 `json:"vf_clipfrac"`
		Loss      float64
		GradLogP  tensor `json:"grad_new_logps"`
		GradValue tensor `json:"grad_vpred"`
	} `json:"ppo"`
	GAE []struct {
		Name      string
		Gamma     float64
		Lam       float64
		Rewards   tensor
		Values    tensor
		Bootstrap float64 `json:"bootstrap_value"`
		Done      tensor  `json:"done_after_step"`
		Adv       tensor  `json:"advantages"`
		Returns   tensor
	}
}

func load(t *testing.T) (g golden) {
	raw, err := os.ReadFile("testdata/ppo_gae.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &g))
	return g
}

func TestPPOEqualsTRL(t *testing.T) {
	g := load(t)
	require.Len(t, g.PPO, 8)
	old, ref, val := g.Inputs.Old.rows(), g.Inputs.Ref.rows(), g.Inputs.Values.rows()
	for _, c := range g.PPO {
		t.Run(c.Name, func(t *testing.T) {
			cfg := Config{KLCoef: c.KLCoef, KLEstimator: c.Estimator, WhitenRewards: c.Whiten, WhitenAdvantages: true, Gamma: c.Gamma, Lambda: c.Lam, CliprangeValue: &c.ClipValue, VFCoef: c.VFCoef}
			var trajs []Trajectory
			for i := range old {
				T := int(g.Inputs.Last.Data[i]) + 1
				trajs = append(trajs, Trajectory{Old: old[i][:T], Ref: ref[i][:T], Values: val[i][:min(T+1, len(val[i]))], Score: g.Inputs.Scores.Data[i]})
			}
			est, _, err := Estimates(cfg, trajs)
			require.NoError(t, err)
			pc := loss.DefaultConfig()
			pc.EpsilonLow, pc.EpsilonHigh = c.Clip, c.Clip
			var rows []loss.Row
			var values []ValueRow
			for i, tr := range trajs {
				T, S := len(tr.Old), len(tr.Values)
				require.InDeltaSlice(t, c.Rewards.rows()[i][:S], est[i].Rewards, tol)
				require.InDeltaSlice(t, c.Adv.rows()[i][:S], est[i].Adv, tol)
				require.InDeltaSlice(t, c.Returns.rows()[i][:S], est[i].Returns, tol)
				lp, v := slices.Clone(tr.Old), slices.Clone(tr.Values)
				for k := range v {
					at := float64(i*len(val[i]) + k)
					v[k] += .4 * math.Cos(at)
					if k < T {
						lp[k] += .4 * math.Sin(at)
					}
				}
				rows = append(rows, loss.Row{LogP: lp, Old: tr.Old, Adv: est[i].Policy(T)})
				values = append(values, ValueRow{Pred: v, Old: tr.Values, Returns: est[i].Returns})
			}
			tot, err := loss.NewTotals(pc, rows)
			require.NoError(t, err)
			pg, err := loss.Compute(pc, rows, tot)
			require.NoError(t, err)
			vf, err := Value(cfg, values, ValueCount(values))
			require.NoError(t, err)
			require.InDelta(t, c.PG, pg.Loss, tol)
			require.InDelta(t, c.VF*c.VFCoef, vf.Loss, tol)
			require.InDelta(t, c.Loss, pg.Loss+vf.Loss, tol)
			m := vf.Stats.Metrics()
			require.InDelta(t, c.VF, m["loss/value"], tol)
			require.InDelta(t, c.ClipFrac, m["value/clipfrac"], 1e-7) // float32 in TRL
			for i := range rows {
				require.InDeltaSlice(t, c.GradLogP.rows()[i][:len(pg.DLogP[i])], pg.DLogP[i], tol)
				require.InDeltaSlice(t, c.GradValue.rows()[i][:len(vf.DValue[i])], vf.DValue[i], tol)
			}
		})
	}
}

func TestGAEWithDoneFlags(t *testing.T) {
	g := load(t)
	require.Len(t, g.GAE, 3)
	for _, c := range g.GAE {
		done := make([]bool, len(c.Done.Data))
		for i, d := range c.Done.Data {
			done[i] = d == 1
		}
		adv, ret, err := GAE(c.Rewards.Data, c.Values.Data, done, c.Bootstrap, c.Gamma, c.Lam)
		require.NoError(t, err)
		require.InDeltaSlice(t, c.Adv.Data, adv, tol, c.Name)
		require.InDeltaSlice(t, c.Returns.Data, ret, tol, c.Name)
	}
	_, _, err := GAE([]float64{1}, nil, nil, 0, 1, 1)
	require.ErrorContains(t, err, "1 rewards, 0 values")
}

func plain() Config { return Config{KLEstimator: loss.KLK1, Gamma: .9, Lambda: 1, VFCoef: 1} }

// cases/training.tsv GAE: "terminal reward placed on the last response token
// though that token is a masked tool result; each observation token also decays
// credit": mask [1,0,0], reward 1, gamma 0.9, lambda 1 gives advantage 1.0.
func TestCaseGAETerminalRewardLandsOnTheLastTrainedToken(t *testing.T) {
	est, _, err := Estimates(plain(), []Trajectory{{Old: make([]float64, 3), Values: []float64{0, 7, 7}, Mask: []bool{true, false, false}, Score: 1}})
	require.NoError(t, err)
	require.Equal(t, []float64{1, 0, 0}, est[0].Adv)
	est, _, err = Estimates(plain(), []Trajectory{{Old: make([]float64, 4), Values: make([]float64, 4), Mask: []bool{true, false, false, true}, Score: 1}})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{.9, 0, 0, 1}, est[0].Adv, 1e-12) // one step apart, not three
}

// cases/training.tsv returns: "reward-to-go reset at observation tokens":
// rewards [0,0,1], mask [1,0,1], gamma 0.5 give action returns 0.5 and 1.0.
func TestCaseReturnsPassObservationTokens(t *testing.T) {
	c := plain()
	c.Gamma = .5
	est, _, err := Estimates(c, []Trajectory{{Old: make([]float64, 3), Values: make([]float64, 3), Mask: []bool{true, false, true}, Rewards: []float64{0, 0, 1}}})
	require.NoError(t, err)
	require.InDelta(t, .5, est[0].Returns[0], 1e-12)
	require.InDelta(t, 1, est[0].Returns[2], 1e-12)
	_, _, err = Estimates(c, []Trajectory{{Old: make([]float64, 2), Values: make([]float64, 2), Mask: []bool{true, false}, Rewards: []float64{0, 1}}})
	require.ErrorContains(t, err, "row 0 token 1: reward 1 at a token the policy did not choose")
}

// cases/training.tsv KL: the KL of a tool-result token is in no reward.
func TestCaseKLOfToolTokensIsNotAReward(t *testing.T) {
	c := plain()
	c.KLCoef, c.Gamma = 1, 1
	_, st, err := Estimates(c, []Trajectory{{Old: make([]float64, 3), Ref: []float64{-.1, -5, -.1}, Values: make([]float64, 3), Mask: []bool{true, false, true}}})
	require.NoError(t, err)
	require.InDelta(t, .2, st.Metrics()["objective/kl"], 1e-12)
}

func draw(rt *rapid.T) []Trajectory {
	f := rapid.Float64Range(-2, 2)
	rows := make([]Trajectory, rapid.IntRange(1, 5).Draw(rt, "rows"))
	for i := range rows {
		T := rapid.IntRange(1, 5).Draw(rt, "T")
		s := func(n int) []float64 { return rapid.SliceOfN(f, n, n).Draw(rt, "x") }
		rows[i] = Trajectory{Old: s(T), Ref: s(T), Values: s(T + rapid.IntRange(0, 1).Draw(rt, "tail")), Mask: rapid.SliceOfN(rapid.Bool(), T, T).Draw(rt, "mask"), Score: f.Draw(rt, "score")}
	}
	return rows
}

// Order of rows and what the mask hides change nothing; the value loss is a sum
// of its micro-batches and its derivative is its derivative.
func TestPPOInvariances(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := DefaultConfig()
		c.WhitenRewards = rapid.Bool().Draw(rt, "whiten")
		c.Gamma = rapid.SampledFrom([]float64{1, .9}).Draw(rt, "gamma")
		c.KLEstimator = rapid.SampledFrom([]string{loss.KLK1, loss.KLK2, loss.KLK3}).Draw(rt, "kl")
		rows := draw(rt)
		est, _, err := Estimates(c, rows)
		require.NoError(rt, err)
		perm := rapid.Permutation(slices.Collect(func(y func(int) bool) {
			for i := range rows {
				if !y(i) {
					return
				}
			}
		})).Draw(rt, "perm")
		moved := make([]Trajectory, len(rows))
		for j, i := range perm {
			r := rows[i]
			r.Old, r.Ref, r.Values = slices.Clone(r.Old), slices.Clone(r.Ref), slices.Clone(r.Values)
			for t, on := range r.Mask {
				if !on {
					r.Old[t], r.Ref[t], r.Values[t] = math.NaN(), math.Inf(1), math.NaN()
				}
			}
			moved[j] = r
		}
		again, _, err := Estimates(c, moved)
		require.NoError(rt, err)
		var vr []ValueRow
		for j, i := range perm {
			require.InDeltaSlice(rt, est[i].Adv, again[j].Adv, 1e-9)
			require.InDeltaSlice(rt, est[i].Returns, again[j].Returns, 1e-9)
			pred := slices.Clone(moved[j].Values)
			for t := range pred {
				pred[t] += rapid.Float64Range(-.5, .5).Draw(rt, "move")
			}
			vr = append(vr, ValueRow{Pred: pred, Old: moved[j].Values, Returns: again[j].Returns, Mask: moved[j].Mask})
		}
		n := ValueCount(vr)
		whole, err := Value(c, vr, n)
		require.NoError(rt, err)
		sum := 0.0
		var st ValueStats
		for i := range vr {
			one, err := Value(c, vr[i:i+1], n)
			require.NoError(rt, err)
			require.Equal(rt, whole.DValue[i], one.DValue[0])
			sum += one.Loss
			st.Merge(one.Stats)
		}
		require.InDelta(rt, whole.Loss, sum, 1e-12)
		for k, v := range whole.Stats.Metrics() {
			require.InDelta(rt, v, st.Metrics()[k], 1e-9*(1+math.Abs(v)), k)
		}
		for i, r := range vr {
			for k, g := range whole.DValue[i] {
				at := func(d float64) float64 {
					m := slices.Clone(vr)
					m[i].Pred = slices.Clone(r.Pred)
					m[i].Pred[k] += d
					res, err := Value(c, m, n)
					require.NoError(rt, err)
					return res.Loss
				}
				up, mid, down := at(1e-6), at(0), at(-1e-6)
				if math.Abs(up+down-2*mid) < 1e-10 { // not on the clip's edge
					require.InDelta(rt, (up-down)/2e-6, g, 1e-7)
				}
			}
		}
	})
}

func TestNothingTrainedIsZero(t *testing.T) {
	off := Trajectory{Old: []float64{-1, -1}, Ref: []float64{-1, -2}, Values: []float64{1, 2, 3}, Mask: []bool{false, false}, Score: 9}
	est, st, err := Estimates(DefaultConfig(), []Trajectory{off})
	require.NoError(t, err)
	require.Equal(t, Estimate{make([]float64, 3), make([]float64, 3), make([]float64, 3)}, est[0])
	require.Empty(t, st.Metrics())
	res, err := Value(DefaultConfig(), []ValueRow{{Pred: off.Values, Old: off.Values, Returns: make([]float64, 3), Mask: off.Mask}}, 0)
	require.NoError(t, err)
	require.Zero(t, res.Loss)
	require.Equal(t, make([]float64, 3), res.DValue[0])
}

func TestBadInput(t *testing.T) {
	one := []float64{-1}
	for want, r := range map[string]Trajectory{
		"row 0: Mask has 2 values for 1 tokens":             {Old: one, Values: one, Ref: one, Mask: make([]bool, 2)},
		"row 0: Values has 3 values for 1 tokens":           {Old: one, Values: make([]float64, 3), Ref: one},
		"row 0: Score is NaN":                               {Old: one, Values: one, Ref: one, Score: math.NaN()},
		"row 0: Ref is missing but kl_coef 0.05 needs it":   {Old: one, Values: one},
		"row 0 token 0: Old is -Inf":                        {Old: []float64{math.Inf(-1)}, Values: one, Ref: one},
		"row 0: Rewards has 2 values for 1 tokens":          {Old: one, Values: one, Ref: one, Rewards: make([]float64, 2)},
		"row 0 token 0: advantage NaN, return +Inf; the va": {Old: one, Values: one, Ref: one, Score: 1e308, Bootstrap: 1e308},
	} {
		_, _, err := Estimates(DefaultConfig(), []Trajectory{r})
		require.ErrorContains(t, err, want)
	}
	zero := 0.0
	bad := Config{KLCoef: -1, KLEstimator: "k9", Gamma: 2, Lambda: -1, CliprangeValue: &zero, VFCoef: math.NaN()}
	for _, f := range []string{"kl_coef", "kl_estimator", "gamma", "lam", "cliprange_value", "vf_coef"} {
		require.ErrorContains(t, bad.Validate(), f+":")
	}
	_, err := Value(DefaultConfig(), []ValueRow{{Pred: one}}, 1)
	require.ErrorContains(t, err, "value row 0: 1 predictions, 0 old values")
	_, err = Value(DefaultConfig(), []ValueRow{{Pred: one, Old: one, Returns: one}}, 0)
	require.ErrorContains(t, err, "use ValueCount")
	_, err = Value(DefaultConfig(), []ValueRow{{Pred: []float64{math.NaN()}, Old: one, Returns: one}}, 1)
	require.ErrorContains(t, err, "value row 0 token 0: value NaN")
}
