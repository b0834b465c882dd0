package gobackend

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// TestStorageChangesNoBit compares a model whose weights fit 16 bits, and which
// is hence kept so, with the same numbers kept in float32.
func TestStorageChangesNoBit(t *testing.T) {
	c := quickConfig()
	c.TieWordEmbeddings = false
	for form, mask := range map[string]uint32{"bf16": 0xffff0000, "f16": 0xffffe000} {
		small := randomModel(t, c, 5)
		each := func(f func([]float32)) {
			f(small.Weights.Embed)
			f(small.Weights.Head)
			for i := range small.Weights.Layers {
				l := &small.Weights.Layers[i]
				for _, w := range [][]float32{l.Q, l.K, l.V, l.O, l.Gate, l.Up, l.Down} {
					f(w)
				}
			}
		}
		each(func(w []float32) {
			for i, v := range w {
				if math.Abs(float64(v)) < 1e-4 {
					v = 0 // smaller numbers are subnormal in binary16
				}
				w[i] = math.Float32frombits(math.Float32bits(v) & mask)
			}
		})
		b := newBackend(t, small, Options{Threads: 2})
		require.Equal(t, []string{form}, slices.Collect(maps.Keys(Storage(b))))
		require.Contains(t, StorageText(b), form+" ")

		full := *b
		copied := *b.net
		full.net = &copied
		full.net.layers = slices.Clone(full.net.layers)
		for i := range full.net.layers {
			l := &full.net.layers[i]
			l.qkv, l.o = widened(l.qkv), widened(l.o)
			l.dense.gateUp, l.dense.down = widened(l.dense.gateUp), widened(l.dense.down)
		}
		full.net.embed, full.net.head = widened(full.net.embed), widened(full.net.head)
		require.Equal(t, []string{"f32"}, slices.Collect(maps.Keys(Storage(&full))))
		require.Equal(t, outcomes(t, &full), outcomes(t, b), form)
	}
	require.Nil(t, Storage(nil))
}

// widened keeps the same numbers in float32.
func widened(l linear) linear {
	rows := make([]float32, l.out*l.in)
	for j := range l.out {
		l.w.Row(rows[j*l.in:(j+1)*l.in], j)
	}
	l.w = f32.NewMatrixAs(nil, f32.Full, l.in, rows)
	return l
}

// outcomes are sampled tokens with their logprobs, and a gradient.
func outcomes(t *testing.T, b *backend) []any {
	d := newDecoder(t, b, 3, 64, nil)
	rows := make([]model.DecodeRow, 3)
	for i := range rows {
		rows[i] = model.DecodeRow{Slot: i, Last: int32(i), MaxNew: 12, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}}
	}
	outs, err := d.Decode(ctx, rows, 12)
	require.NoError(t, err)
	a := randomAdapter(t, b.m, model.LoRAConfig{Rank: 4, Alpha: 8, Targets: []string{"q_proj", "down_proj"}}, 3)
	tr := newTrainer(t, b, model.TrainerConfig{LoRA: a.LoRA}, a.Params)
	train := []bool{true, false, true, true}
	grad, scores := gradient(t, tr, [][]model.PrefixGroup{{{Prompt: []int32{5, 6}, Members: []model.Sequence{{Tokens: []int32{7, 8, 9, 10}, Train: train}}}}}, 1)
	return []any{outs, scores, slices.Clone(grad)}
}
