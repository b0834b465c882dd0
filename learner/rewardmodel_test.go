package learner

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
)

// goldenReward is the reward model of model/testdata/value, its sequences cut
// after one token, and what transformers scores them.
func goldenReward(t *testing.T) (*model.Model, model.Backend, *model.Adapter, []RewardRow, []float64) {
	t.Helper()
	m, err := model.OpenWeights("../model/testdata/families/llama2")
	require.NoError(t, err)
	b, err := gobackend.New(m, gobackend.Options{Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	a, err := model.LoadScoreAdapter("../model/testdata/value", m.Config)
	require.NoError(t, err)
	js, err := os.ReadFile("../model/testdata/value/golden.json")
	require.NoError(t, err)
	var doc struct{ Sequences [][]int32 }
	require.NoError(t, json.Unmarshal(js, &doc))
	f, err := os.Open("../model/testdata/value/golden.safetensors")
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	st, err := model.ReadSafeTensors(f, info.Size())
	require.NoError(t, err)
	var rows []RewardRow
	var want []float64
	for i, ids := range doc.Sequences {
		v := make([]float32, len(ids))
		require.NoError(t, st.ReadF32("lora.values."+strconv.Itoa(i), []int{len(ids)}, v))
		rows, want = append(rows, RewardRow{ids[:1+i], ids[1+i:]}), append(want, float64(v[len(v)-1]))
	}
	return m, b, a, rows, want
}

func TestRewardModelScoresAsTransformers(t *testing.T) {
	m, b, a, rows, want := goldenReward(t)
	var scores []float64
	for _, budget := range []int{1, 20, 4096} {
		r, err := NewRewardModel(b, m.Config, a, budget)
		require.NoError(t, err)
		got, err := r.Score(ctx, rows)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 2e-5)
		if scores == nil {
			scores = got
		}
		require.Equal(t, scores, got, "the same bits in any company")
		var g errgroup.Group
		for i := range rows {
			g.Go(func() error {
				one, err := r.Score(ctx, rows[i:i+1])
				if err == nil && one[0] != scores[i] {
					t.Errorf("row %d alone: %v, want %v", i, one, scores[i])
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		_, err = r.Score(ctx, append(rows, RewardRow{Prompt: []int32{1}}))
		require.ErrorContains(t, err, "row 4 has 1 prompt and 0 completion tokens")
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err = r.Score(done, rows)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, r.Close())
	}
	plain := *a
	plain.Score = nil
	_, err := NewRewardModel(b, m.Config, &plain, 1)
	require.ErrorContains(t, err, "no value head")
	_, err = NewRewardModel(b, m.Config, a, 0)
	require.ErrorContains(t, err, "token budget 0")
}

// A reward model trained on pairs prefers what was chosen, and scores through
// its saved folder as through its checkpoint.
func TestTrainedRewardModelScores(t *testing.T) {
	m, b := realBackend(t)
	lc := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: lc, Value: true})
	require.NoError(t, err)
	defer tr.Close()
	a, err := model.NewAdapter(m.Config, lc, m.Digest, 3)
	require.NoError(t, err)
	var pairs []data.Example
	for i := range int32(10) {
		pairs = append(pairs, data.Example{Prompt: []int32{1, 2 + i}, Chosen: data.Completion{Tokens: []int32{3 + i, 9, 8}}, Rejected: data.Completion{Tokens: []int32{3 + i, 9, 7}}})
	}
	set := data.NewSet("pairs", pairs, data.Order{})
	c := DefaultConfigOf(Reward)
	c.LearningRate, c.NumTrainEpochs, c.BatchTokens = .03, 8, 60
	id := identity()
	id.LoRA, id.Dataset = lc, DatasetOf(set)
	l, err := New(c, id, tr, a.WithScore(m.Config).Flat())
	require.NoError(t, err)
	require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{}))
	trained, err := model.AdapterOf(m.Config, lc, m.Digest, l.Params(), true)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, trained.Save(dir, m.Config, ""))
	loaded, err := model.LoadScoreAdapter(dir, m.Config)
	require.NoError(t, err)
	r, err := NewRewardModel(b, m.Config, loaded, 100)
	require.NoError(t, err)
	defer r.Close()
	scores, err := r.Score(ctx, []RewardRow{{[]int32{1, 15}, []int32{16, 9, 8}}, {[]int32{1, 15}, []int32{16, 9, 7}}})
	require.NoError(t, err)
	require.Greater(t, scores[0], scores[1]+1, "on a prompt it has not seen")
}
