package gobackend

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// Gemma 3 270M in Q4_K_M, which is too big to keep here: its tokens, greedy
// continuations and logits against transformers, on prompts on both sides of the
// sliding window (scripts/golden_gemma3.py).
func TestGemma3Golden(t *testing.T) {
	path := os.Getenv("SKEIN_GEMMA3")
	if path == "" {
		t.Skip("set SKEIN_GEMMA3 to the file that skein model pull gemma3-270m fetches")
	}
	m, err := model.Open(path)
	require.NoError(t, err)
	var golden []struct {
		Text      string
		IDs       []int32
		Greedy    []int32
		Margins   []float64
		TopIDs    []int32   `json:"top_ids"`
		TopLogits []float64 `json:"top_logits"`
		LogSumExp float64
	}
	data, err := os.ReadFile("testdata/gemma3_270m.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	b := newBackend(t, m, Options{})
	long := 0
	for _, g := range golden {
		require.Equal(t, g.IDs, m.Tokenizer.WithSpecials(m.Tokenizer.Encode(g.Text, false)), g.Text)
		d := newDecoder(t, b, 1, len(g.IDs)+len(g.Greedy)+1, nil)
		n := len(g.IDs) - 1
		require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Tokens: g.IDs[:n]}}))
		out, err := d.Decode(ctx, []model.DecodeRow{{Last: g.IDs[n], MaxNew: len(g.Greedy), Raw: true, Top: len(g.TopIDs)}}, len(g.Greedy))
		require.NoError(t, err)
		for i, want := range g.Greedy {
			require.Equal(t, want, out[0].IDs[i], "%q token %d, margin %v", g.Text, i, g.Margins[i])
			if g.Margins[i] < 1e-2 {
				break // float noise may decide what follows
			}
		}
		got := map[int32]float64{}
		for _, top := range out[0].Top[0] {
			got[top.ID] = float64(top.Logprob)
		}
		for i, id := range g.TopIDs[:8] {
			require.InDelta(t, g.TopLogits[i]-g.LogSumExp, got[id], 2e-3, "%q token %d", g.Text, id)
		}
		if len(g.IDs) > m.Config.SlidingWindow {
			long++
		}
		require.NoError(t, d.Close())
	}
	require.Positive(t, long, "no prompt is longer than the window")
}
