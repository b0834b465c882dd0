//go:build xla

package xla

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// smol is SmolLM2-135M's shape; the weights are random.
var smol = model.Config{
	ModelType: "llama", VocabSize: 49152, HiddenSize: 576, IntermediateSize: 1536, NumHiddenLayers: 30,
	NumAttentionHeads: 9, NumKeyValueHeads: 3, HeadDim: 64, MaxPositionEmbeddings: 8192,
	RMSNormEps: 1e-5, RopeTheta: 100000, TieWordEmbeddings: true, BOSTokenID: 1, EOSTokenID: 2,
}

var qkvo = model.LoRAConfig{Rank: 16, Alpha: 32, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}}

func cpuSeconds() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
}

// peakMB is the process's peak resident set.
func peakMB() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return float64(r.Maxrss) / 1024
}

// benchSlots are the batches worth measuring on the tests' device.
func benchSlots() []int {
	if d := os.Getenv("SKEIN_XLA_DEVICE"); d != "" && d != "cpu" {
		return []int{1, 8, 64, 256}
	}
	return []int{1, 8, 16}
}

// BenchmarkDecode reports ms/step: 32 tokens after a prompt of 200, sampled, with
// an adapter.
func BenchmarkDecode(b *testing.B) {
	for _, dtype := range []string{"f32", "bf16"} {
		for _, slots := range benchSlots() {
			b.Run(fmt.Sprintf("%s-%d", dtype, slots), func(b *testing.B) {
				m := randomModel(b, smol, 1)
				d := newDecoder(b, open(b, m, dtype), slots, 1024)
				require.NoError(b, d.SetAdapter(1, randomAdapter(b, m, qkvo, 1)))
				prompt := randomTokens(rand.New(rand.NewPCG(1, 1)), 200, smol.VocabSize)
				require.NoError(b, d.Prefill(b.Context(), []model.PrefillRow{{Slot: 0, Adapter: 1, Tokens: prompt}}))
				var rows []model.DecodeRow
				for s := range slots {
					require.NoError(b, d.CopyPrefix(s, 0, len(prompt)))
					rows = append(rows, model.DecodeRow{Slot: s, Adapter: 1, Last: 5, MaxNew: 32, Sampling: model.Sampling{Temperature: 1, Seed: uint64(s)}})
				}
				step := func() {
					_, err := d.Decode(b.Context(), rows, 32)
					require.NoError(b, err)
					for s := range slots {
						d.Truncate(s, len(prompt))
					}
				}
				step()
				before := cpuSeconds()
				for b.Loop() {
					step()
				}
				b.ReportMetric((cpuSeconds()-before)*1e3/float64(b.N*32), "cpu-ms/step")
				seconds := b.Elapsed().Seconds() / float64(b.N*32)
				b.ReportMetric(seconds*1e3, "ms/step")
				b.ReportMetric(float64(slots)/seconds, "tokens/s")
			})
		}
	}
}

// BenchmarkUpdate is a GRPO update: forward and backward of a group of 8 with a
// prompt of 300 and completions of 40.
func BenchmarkUpdate(b *testing.B) {
	for _, dtype := range []string{"f32", "bf16"} {
		b.Run(dtype, func(b *testing.B) {
			m := randomModel(b, smol, 1)
			tr := newTrainer(b, open(b, m, dtype), qkvo)
			require.NoError(b, tr.SetParams(randomAdapter(b, m, qkvo, 1).Params))
			rng := rand.New(rand.NewPCG(1, 1))
			g := model.PrefixGroup{Prompt: randomTokens(rng, 300, smol.VocabSize)}
			for range 8 {
				s := model.Sequence{Tokens: randomTokens(rng, 40, smol.VocabSize), Train: make([]bool, 40)}
				for i := range s.Train {
					s.Train[i] = true
				}
				g.Members = append(g.Members, s)
			}
			d := make([]float32, 8*40)
			for i := range d {
				d[i] = float32(rng.NormFloat64()) / 320
			}
			step := func() {
				_, err := tr.Forward(b.Context(), []model.PrefixGroup{g}, 1)
				require.NoError(b, err)
				require.NoError(b, tr.Backward(b.Context(), model.Scores{LogProbs: d}))
			}
			step()
			before := cpuSeconds()
			for b.Loop() {
				step()
			}
			b.ReportMetric((cpuSeconds()-before)/float64(b.N), "cpu-s/op")
			b.ReportMetric(peakMB(), "peak-MB")
		})
	}
}
