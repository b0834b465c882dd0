package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecords: logs have the size that rows say, pass the nodes' check and
// compress no better than the peers' bodies.
func TestRecords(t *testing.T) {
	for _, size := range []int{small, large} {
		recs, err := records(size, 16, members, 1)
		require.NoError(t, err)
		for _, r := range recs {
			require.InDelta(t, size, len(r.Bytes), float64(size)/100)
			require.NoError(t, r.Item.Validate())
			require.NoError(t, verify(r.Item, r.Bytes))
			require.Greater(t, r.Pack().Stored(), size/2)
		}
	}
}
