package gobackend

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTanh(t *testing.T) {
	var x []float32
	for i := -40000; i <= 40000; i++ {
		x = append(x, float32(i)/4000)
	}
	x = append(x, 1e-20, -3e-5, 0.625, -0.625, 50, -1000, 3e38)
	got := append([]float32(nil), x...)
	tanh(got, 0.7)
	for i, v := range x {
		want := math.Tanh(float64(v * 0.7))
		require.InDelta(t, want, got[i], 3e-7*math.Abs(want), "tanh(%v)", v*0.7)
	}
	nan := []float32{float32(math.NaN())}
	tanh(nan, 1)
	require.True(t, nan[0] != nan[0], "damage must show")
}

// TestGates compares both activations and their derivatives with their
// definitions in float64.
func TestGates(t *testing.T) {
	silu := func(g float64) float64 { return g / (1 + math.Exp(-g)) }
	gelu := func(g float64) float64 {
		return 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
	}
	const inter, rows = 37, 20
	r := rand.New(rand.NewPCG(251, 1))
	gu, dact := make([]float32, 2*inter*rows), make([]float32, inter*rows)
	for i := range gu {
		gu[i] = float32(3 * r.NormFloat64())
	}
	gu[0], gu[1], gu[2] = 200, -200, 0
	for i := range dact {
		dact[i] = float32(r.NormFloat64())
	}
	for name, f := range map[string]func(float64) float64{"silu": silu, "gelu": gelu} {
		a := gate{gelu: name == "gelu"}
		act, dgu := make([]float32, inter*rows), make([]float32, 2*inter*rows)
		a.forward(&exec{}, act, gu, inter, rows)
		a.backward(&exec{}, dgu, dact, gu, inter, rows)
		for i := range act {
			row, j := i/inter, i%inter
			g, up := float64(gu[2*row*inter+j]), float64(gu[(2*row+1)*inter+j])
			require.InDelta(t, f(g)*up, act[i], 2e-6*(1+math.Abs(g*up)), "%s(%v)", name, g)
			const h = 1e-5
			slope := (f(g+h) - f(g-h)) / (2 * h)
			d := float64(dact[i])
			require.InDelta(t, d*up*slope, dgu[2*row*inter+j], 3e-6*(1+math.Abs(d*up)), "%s'(%v)", name, g)
			require.InDelta(t, d*f(g), dgu[(2*row+1)*inter+j], 2e-6*(1+math.Abs(d*g)), "%s(%v)", name, g)
		}
	}
}
