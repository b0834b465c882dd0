//go:build xla

package xla

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// deviceSets are the ways to spread one model over the tests' devices.
var deviceSets = []struct {
	devices int
	shard   bool
}{{1, false}, {2, false}, {4, false}, {2, true}, {4, true}}

// openOn opens a model on several devices; a machine with fewer skips the test.
func openOn(t *testing.T, m *model.Model, dtype string, devices int, shard bool) *backend {
	t.Helper()
	o := testOptions(t, dtype)
	if o.Device != "" && o.Device != "cpu" && devices > 1 {
		t.Skip("several devices are tested on the CPU plugin, which makes any number")
	}
	o.Devices, o.Shard = devices, shard
	b, err := Open(m, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*backend)
}

// unlikeGroups have two layouts, so that compiling doesn't take all the time.
func unlikeGroups(rng *rand.Rand, n int) (groups []model.PrefixGroup) {
	for i := range n {
		g := model.PrefixGroup{Prompt: randomTokens(rng, 5+7*i, 300)}
		for range 1 + i%2 {
			k := 1 + rng.IntN(12)
			s := model.Sequence{Tokens: randomTokens(rng, k, 300), Train: make([]bool, k)}
			for j := range s.Train {
				s.Train[j] = rng.IntN(4) > 0
			}
			g.Members = append(g.Members, s)
		}
		groups = append(groups, g)
	}
	return groups
}

// Batches are computed whole on one device by one program, and gradients added
// in the order of batches, so 1, 2 and 4 devices, with whole or shared weights,
// give the same bits.
func TestDevicesGiveTheSameBits(t *testing.T) {
	m := randomModel(t, smallConfig, 3)
	rng := rand.New(rand.NewPCG(9, 9))
	groups := unlikeGroups(rng, 5)
	groups[1].Dropout = model.Dropout{Rate: 0.3, Key: 8}
	params := randomAdapter(t, m, tinyLoRA, 1).Params
	var scores, base model.Scores
	var grad, d []float32
	for _, set := range deviceSets {
		t.Run(fmt.Sprintf("%d shard=%v", set.devices, set.shard), func(t *testing.T) {
			b := openOn(t, m, "f32", set.devices, set.shard)
			tr := newTrainer(t, b, tinyLoRA)
			require.NoError(t, tr.SetParams(params))
			got, err := tr.Forward(t.Context(), groups, 0.8)
			require.NoError(t, err)
			if d == nil {
				d = randomWeights(rng, len(got.LogProbs))
			}
			require.NoError(t, tr.Backward(t.Context(), model.Scores{LogProbs: d, Entropy: d}))
			plain, err := tr.Score(t.Context(), groups, 1, nil)
			require.NoError(t, err)
			if grad == nil {
				scores, base, grad = got, plain, slices.Clone(tr.Grad())
				return
			}
			require.Equal(t, scores, got)
			require.Equal(t, base, plain)
			require.Equal(t, grad, tr.Grad())
		})
	}
}

// Sharded, a device keeps its share only; a decoder still has the whole model.
func TestShardedWeights(t *testing.T) {
	c := smallConfig
	c.NumHiddenLayers = 8
	m := randomModel(t, c, 3)
	whole := openOn(t, m, "f32", 2, false)
	for i, n := range whole.weights.kept() {
		require.Positive(t, n)
		require.Equal(t, whole.weights.kept()[0], n, "device %d", i)
	}
	all := whole.weights.kept()[0]
	prompt := []int32{1, 2, 3, 4, 5}
	want := decode(t, newDecoder(t, whole, 1, 64), 0, prompt, 12, model.Sampling{})
	for _, devices := range []int{2, 4} {
		b := openOn(t, m, "f32", devices, true)
		sum := 0
		for i, n := range b.weights.kept() {
			sum += n
			require.Less(t, n, all*5/4/devices, "device %d of %d", i, devices)
		}
		require.Equal(t, all, sum)
		if devices == 2 {
			require.Equal(t, want, decode(t, newDecoder(t, b, 1, 64), 0, prompt, 12, model.Sampling{}))
		}
	}
}

func TestDevicesRefused(t *testing.T) {
	o := testOptions(t, "f32")
	for want, bad := range map[string]Options{
		"devices -1":             {Devices: -1},
		"shard with devices 1":   {Shard: true},
		"shard with devices 1: ": {Shard: true, Devices: 1},
	} {
		bad.Plugin, bad.Device = o.Plugin, o.Device
		_, err := Open(randomModel(t, smallConfig, 1), bad)
		require.ErrorContains(t, err, want)
	}
}

// A lane's error ends the others and leaves the gradient as it was.
func TestDeviceFails(t *testing.T) {
	m := randomModel(t, smallConfig, 3)
	b := openOn(t, m, "f32", 2, false)
	tr := newTrainer(t, b, tinyLoRA).(*trainer)
	rng := rand.New(rand.NewPCG(3, 9))
	g := unlikeGroups(rng, 1)[0]
	got, err := tr.Forward(t.Context(), []model.PrefixGroup{g, g, g, g}, 1)
	require.NoError(t, err)
	free(tr.passes[3].inputs[0]) // on device 1
	tr.passes[3].inputs[0], err = tr.lanes[1].dev.putF32([]float32{1})
	require.NoError(t, err)
	err = tr.Backward(t.Context(), model.Scores{LogProbs: randomWeights(rng, len(got.LogProbs))})
	require.Error(t, err)
	require.NotErrorIs(t, err, t.Context().Err())
	for _, g := range tr.Grad() {
		require.Zero(t, g)
	}
}
