package model

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers of old steps: a change of any of them breaks their verification.
func TestDropoutNumbers(t *testing.T) {
	key := DropoutKey(7, DropoutCritic, 3)
	rows := appendRows(nil, key, []int32{5, 0, 151935})
	a, b := MaskKeys(rows[2], DropoutSite(29, "down_proj"))
	require.Equal(t, uint64(0xd6be80b831b07255), key)
	require.Equal(t, []uint64{0x6167a0b1d0e3f6a7, 0xf2e6a89408ff167c, 0x392f68980e288b31}, rows)
	require.Equal(t, uint32(470), DropoutSite(29, "down_proj"))
	require.Equal(t, []uint32{0xcc9cc795, 0x5f8b4b22, 0x9b68dfb0, 0xd2739730}, []uint32{a, b, MaskBits(a, b, 0), MaskBits(a, b, 1)})
	tree := PrefixGroup{Dropout: Dropout{Rate: 0.1, Key: key}, Prompt: []int32{5}, Members: []Sequence{
		{Tokens: []int32{0}}, {Tokens: []int32{151935}, Parent: 1}, {Parent: 1}, {Tokens: []int32{151935}, Parent: 3}, {Tokens: []int32{0, 151935, 1}},
	}}
	prompt, members := tree.DropoutRows()
	require.Equal(t, rows[:1], prompt)
	require.Equal(t, [][]uint64{rows[1:2], rows[2:], nil, rows[2:]}, members[:4], "shared tokens have the prefix's keys, wherever they stand")
	require.Equal(t, rows[1:], members[4][:2])
	tree.Dropout.Rate = 0
	prompt, members = tree.DropoutRows()
	require.Nil(t, prompt)
	require.Nil(t, members)
	for name := range dropoutModules {
		require.Contains(t, knownProjections(), name)
	}
	require.Len(t, dropoutModules, len(knownProjections()))
}

// Masks keep 1-p of everything, and masks that differ in one of seed, use, step,
// token, layer, projection, row or feature agree as often as unrelated ones do.
func TestDropoutMasksAreIndependent(t *testing.T) {
	const n = 1 << 16
	for _, rate := range []float64{0.05, 0.5, 0.9} {
		bound := Dropout{Rate: rate}.Threshold()
		mask := func(row uint64, site, from uint32) []bool {
			a, b := MaskKeys(row, site)
			out := make([]bool, n)
			for f := range out {
				out[f] = MaskBits(a, b, from+uint32(f)) >= bound
			}
			return out
		}
		row := func(seed, use, step uint64, tokens ...int32) uint64 {
			rows := appendRows(nil, DropoutKey(seed, use, step), tokens)
			return rows[len(rows)-1]
		}
		q := DropoutSite(0, "q_proj")
		first := mask(row(1, 0, 1, 10, 11), q, 0)
		kept := 0
		for _, k := range first {
			if k {
				kept++
			}
		}
		require.InDelta(t, 1-rate, float64(kept)/n, 5*math.Sqrt(rate*(1-rate)/n))
		for name, other := range map[string][]bool{
			"seed":       mask(row(2, 0, 1, 10, 11), q, 0),
			"use":        mask(row(1, 1, 1, 10, 11), q, 0),
			"step":       mask(row(1, 0, 2, 10, 11), q, 0),
			"token":      mask(row(1, 0, 1, 10, 12), q, 0),
			"order":      mask(row(1, 0, 1, 11, 10), q, 0),
			"before":     mask(row(1, 0, 1, 9, 11), q, 0),
			"position":   mask(row(1, 0, 1, 10, 11, 11), q, 0),
			"layer":      mask(row(1, 0, 1, 10, 11), DropoutSite(1, "q_proj"), 0),
			"projection": mask(row(1, 0, 1, 10, 11), DropoutSite(0, "k_proj"), 0),
			"feature":    mask(row(1, 0, 1, 10, 11), q, 1),
			"features":   mask(row(1, 0, 1, 10, 11), q, 32),
		} {
			same := 0
			for i, k := range first {
				if k == other[i] {
					same++
				}
			}
			p := rate*rate + (1-rate)*(1-rate)
			require.InDelta(t, p, float64(same)/n, 5*math.Sqrt(p*(1-p)/n), "%s at %v", name, rate)
		}
	}
}

func TestDropoutRates(t *testing.T) {
	for _, rate := range []float64{-0.1, 1, 1.5, math.NaN(), math.Inf(1)} {
		require.ErrorContains(t, Dropout{Rate: rate}.check(), "dropout rate is", rate)
	}
	require.NoError(t, Dropout{}.check())
	require.Equal(t, uint32(1<<31), Dropout{Rate: 0.5}.Threshold())
	require.Equal(t, uint32(0), Dropout{}.Threshold(), "everything stays")
	require.InDelta(t, 4./3, Dropout{Rate: 0.25}.Scale(), 1e-7)
}
