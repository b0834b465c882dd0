package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestScheduleFollowsFromItsSeed(t *testing.T) {
	const length = 150 * time.Second
	seen := map[Kind]int{}
	for seed := range uint64(60) {
		a := Schedule(seed, length, 3, true, nil)
		require.Empty(t, cmp.Diff(a, Schedule(seed, length, 3, true, nil)))
		require.NotEmpty(t, cmp.Diff(a, Schedule(seed+1000, length, 3, true, nil)))
		require.NotEmpty(t, a)
		for i, f := range a {
			seen[f.Kind]++
			require.GreaterOrEqual(t, f.At, time.Duration(0))
			require.LessOrEqual(t, f.At+f.For, length)
			require.Less(t, f.Target, 3)
			if i > 0 {
				require.LessOrEqual(t, a[i-1].At, f.At)
			}
		}
	}
	for _, w := range weights {
		require.NotZero(t, seen[w.kind], w.kind)
	}
}

func TestScheduleOfSomeKinds(t *testing.T) {
	for _, f := range Schedule(3, time.Minute, 5, false, quick) {
		require.Contains(t, quick, f.Kind)
	}
	for _, f := range Schedule(3, 10*time.Minute, 5, false, nil) {
		for _, w := range weights {
			require.False(t, w.kind == f.Kind && w.needsDisk, f)
		}
	}
	require.Empty(t, Schedule(3, time.Minute, 5, false, []Kind{PowerCut}), "it needs the disk")
}
