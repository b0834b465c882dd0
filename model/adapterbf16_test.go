package model

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A rounded adapter is half as long, comes back as it went, and its digest is
// that of the rounded numbers.
func TestAdapterBF16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float32Range(-1e6, 1e6)
		a := &Adapter{LoRA: LoRAConfig{Rank: 1, Alpha: 1, Targets: []string{"q_proj"}}, BaseDigest: "blake3:00",
			Params: rapid.SliceOfN(f, 1, 300).Draw(t, "params"), Score: rapid.SliceOfN(f, 1, 9).Draw(t, "score")}
		r := a.RoundBF16()
		require.False(t, a.BF16)
		require.Less(t, len(r.Encode()), len(a.Encode()))
		back, err := DecodeAdapter(r.Encode())
		require.NoError(t, err)
		require.Equal(t, r, back)
		require.Equal(t, r.Digest(), back.Digest())
		require.Equal(t, BlobDigest(r.Encode()), back.Digest())
		require.NotEqual(t, a.Digest(), r.Digest())
		require.Equal(t, r, r.RoundBF16())
		for i, v := range a.Params {
			require.InDelta(t, v, r.Params[i], float64(max(v, -v))/256+0x1p-134) // bf16 has no finer number near 0
		}
		plain, err := DecodeAdapter(a.Encode())
		require.NoError(t, err)
		require.Equal(t, a, plain)
	})
}
