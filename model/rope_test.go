package model

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Golden values of transformers, made by scripts/golden_rope.py.
func TestRopeScaling(t *testing.T) {
	data, err := os.ReadFile("testdata/rope.json")
	require.NoError(t, err)
	var cases []struct {
		Name   string
		Long   bool
		Config json.RawMessage
		Inv    []float64
		Scale  float64
	}
	require.NoError(t, json.Unmarshal(data, &cases))
	require.NotEmpty(t, cases)
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			c, _, err := ParseConfig(tc.Config)
			require.NoError(t, err)
			c.RopeScaling.Long = tc.Long
			got := c.Rope(0)
			require.Len(t, got.Inv, len(tc.Inv))
			for i, want := range tc.Inv {
				// transformers computes in f32.
				require.InEpsilon(t, want, float64(got.Inv[i]), 2e-6, "pair %d", i)
			}
			require.InDelta(t, tc.Scale, float64(got.Scale), 1e-6)
		})
	}
}

func TestRopeLayers(t *testing.T) {
	c := Config{HeadDim: 8, RopeTheta: 1e6, LocalRopeTheta: 1e4, SlidingWindow: 4, FullLayers: []bool{false, true, false},
		NoRopeLayers: []bool{false, false, true}, RopeScaling: RopeScaling{Type: "linear", Factor: 8}}
	local, global, none := c.Rope(0), c.Rope(1), c.Rope(2)
	require.InDelta(t, math.Pow(1e4, -0.25), float64(local.Inv[1]), 1e-7, "its own base, unscaled")
	require.InDelta(t, math.Pow(1e6, -0.25)/8, float64(global.Inv[1]), 1e-9)
	require.Empty(t, none.Inv)
	require.Equal(t, float32(1), none.Scale)

	c = Config{HeadDim: 8, RotaryDim: 4, RopeTheta: 1e4}
	require.Equal(t, []float32{1, 0.01}, c.Rope(0).Inv, "exponents over the rotated part")
}

func TestContextLimit(t *testing.T) {
	limit := func(c Config, long bool) int {
		c.RopeScaling.Long = long
		return c.ContextLimit()
	}
	for _, tc := range []struct {
		name        string
		c           Config
		short, long int
	}{
		{"plain", Config{MaxPositionEmbeddings: 100}, 100, 100},
		{"linear", Config{MaxPositionEmbeddings: 100, RopeScaling: RopeScaling{Type: "linear", Factor: 4}}, 100, 100},
		{"dynamic", Config{MaxPositionEmbeddings: 100, RopeScaling: RopeScaling{Type: "dynamic", Factor: 4, OriginalMaxPositions: 100}}, 100, 400},
		{"longrope", Config{MaxPositionEmbeddings: 100, RopeScaling: RopeScaling{Type: "longrope", OriginalMaxPositions: 30}}, 30, 100},
		{"yarn named by its scaled context", Config{MaxPositionEmbeddings: 100, RopeScaling: RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 25}}, 100, 100},
		{"yarn named by its trained context", Config{MaxPositionEmbeddings: 25, RopeScaling: RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 25}}, 100, 100},
		{"llama3", Config{MaxPositionEmbeddings: 100, RopeScaling: RopeScaling{Type: "llama3", Factor: 8, OriginalMaxPositions: 25}}, 100, 100},
	} {
		require.Equal(t, []int{tc.short, tc.long}, []int{limit(tc.c, false), limit(tc.c, true)}, tc.name)
	}
}
