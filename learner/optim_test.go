package learner

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

func f32(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

func TestAdamWAndClippingEqualTorch(t *testing.T) {
	type vec struct{ Data []float64 }
	var g struct {
		LR          float64
		Betas       []float64
		Eps         float64
		DecayP      float64 `json:"weight_decay_p"`
		DecayQ      float64 `json:"weight_decay_q"`
		MaxGradNorm float64 `json:"max_grad_norm"`
		P0, Q0      vec
		Steps       []struct {
			GradP vec     `json:"grad_p"`
			GradQ vec     `json:"grad_q"`
			Norm  float64 `json:"total_norm_before_clip"`
			P, Q  vec
		}
		Schedules map[string][]float64 `json:"schedules_warmup3_total12"`
	}
	raw, err := os.ReadFile("testdata/optim.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &g))

	n := len(g.P0.Data)
	params := f32(append(append([]float64{}, g.P0.Data...), g.Q0.Data...))
	spans := []Decay{{0, n, g.DecayP}, {n, len(params), g.DecayQ}}
	opt := NewAdamW(len(params))
	require.Len(t, g.Steps, 4)
	for i, s := range g.Steps {
		grad := f32(append(append([]float64{}, s.GradP.Data...), s.GradQ.Data...))
		norm := GradNorm(grad)
		require.InDelta(t, s.Norm, norm, 1e-6)
		require.NoError(t, opt.Update(params, grad, spans, Hyper{LR: g.LR, Beta1: g.Betas[0], Beta2: g.Betas[1], Epsilon: g.Eps, Scale: ClipScale(norm, g.MaxGradNorm)}))
		for j, want := range append(append([]float64{}, s.P.Data...), s.Q.Data...) {
			require.InDelta(t, want, params[j], 1e-6, "step %d parameter %d", i, j)
		}
	}
	require.ElementsMatch(t, Schedules(), []string{"constant", "constant_with_warmup", "cosine", "linear"})
	for name, want := range g.Schedules {
		c := DefaultConfig()
		c.LRSchedulerType, c.LearningRate, c.WarmupSteps = name, 1, 3
		for i, w := range want {
			require.InDelta(t, w, c.LR(uint64(i), 12), 1e-12, "%s %d", name, i)
		}
	}
	require.Equal(t, 1.0, ClipScale(100, 0))
	require.Equal(t, 1/(2+1e-6), ClipScale(2, 1))
	require.Equal(t, 1.0, ClipScale(.5, 1))
	require.Error(t, opt.Update(params, nil, spans, Hyper{}))
}

func TestDecaySparesNormsAndBiases(t *testing.T) {
	d := DecayOf(model.Layout{
		{Name: "model.layers.0.self_attn.q_proj.weight", Shape: []int{2, 2}, Offset: 0},
		{Name: "model.norm.weight", Shape: []int{3}, Offset: 4},
		{Name: "x.bias", Shape: []int{1, 1}, Offset: 7},
		{Name: "x.lora_A.weight", Shape: []int{1, 2}, Offset: 8},
	}, .1)
	require.Equal(t, []Decay{{0, 4, .1}, {4, 7, 0}, {7, 8, 0}, {8, 10, .1}}, d)
}

func TestDefaultsAreValidAndEveryProblemIsNamed(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	require.NoError(t, DefaultSFTConfig().Validate())
	c := DefaultConfig()
	c.LossType, c.ImportanceSamplingLevel, c.ScaleRewards, c.MultiObjectiveAggregation = "x", "x", "x", "x"
	c.ConstantGroups, c.OldLogprobs, c.RolloutImportanceSamplingMode, c.RolloutISDenominator = "x", "x", "x", "x"
	c.GroupsPerStep, c.NumIterations, c.MaxCompletionLength, c.MaxSteps, c.TokenBudget, c.WarmupSteps = 0, 0, 0, 0, 0, -1
	c.Temperature, c.LearningRate, c.WeightDecay, c.AdamEpsilon, c.MaxGradNorm, c.AdamBeta1, c.AdamBeta2 = 0, -1, math.NaN(), 0, -1, 1, -1
	c.LRSchedulerType = "x"
	err := c.Validate()
	for _, f := range []string{"loss_type", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation", "constant_groups", "old_logprobs", "rollout_importance_sampling_mode",
		"rollout_is_denominator", "groups_per_step", "num_iterations", "max_completion_length", "max_steps", "token_budget", "warmup_steps", "temperature", "learning_rate", "weight_decay",
		"adam_epsilon", "max_grad_norm", "adam_beta1", "adam_beta2", "lr_scheduler_type"} {
		require.ErrorContains(t, err, f+": ")
	}
	c = DefaultConfig()
	c.Algorithm = "ppo2"
	require.ErrorContains(t, c.Validate(), `algorithm: unknown "ppo2"`)
	c = DefaultConfig()
	c.OldLogprobs = OldEngine
	require.ErrorContains(t, c.Validate(), "rollout_importance_sampling_correction: false")
	c = DefaultConfig()
	c.MaxSteps, c.WarmupSteps = 5, 5
	require.ErrorContains(t, c.Validate(), "warmup_steps: 5 leaves no step")
	s := DefaultSFTConfig()
	s.LossType, s.NumTrainEpochs, s.BatchTokens = "dapo", 0, 0
	for _, f := range []string{"loss_type", "num_train_epochs", "batch_tokens"} {
		require.ErrorContains(t, s.Validate(), f+": ")
	}
}

// cases/training.tsv zero-advantage: "advantage gate with group_size=1 rejects
// every group and training hangs".
func TestCaseZeroAdvantageGroupSizeOneIsAConfigError(t *testing.T) {
	c := DefaultConfig()
	c.NumGenerations = 1
	require.ErrorContains(t, c.Validate(), "num_generations: 1 is below 2; grpo compares siblings")
	_, err := New(c, identity(), newBandit(2), make([]float32, 4))
	require.ErrorContains(t, err, "num_generations")
}
