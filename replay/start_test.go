package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunStartsFromItsStartAdapter(t *testing.T) {
	kv := NewMemKV()
	spec := RunSpec{Run: "r", GroupSize: 2, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1, BaseDigest: "blake3:base", StartAdapter: "blake3:warm"}
	now := time.Unix(1_800_000_000, 0)
	_, err := Apply(kv, CreateRunCmd{Now: now, Spec: spec})
	require.NoError(t, err)

	p, err := Latest(kv, "r")
	require.NoError(t, err)
	require.Equal(t, Policy{Run: "r", Version: 0, Adapter: "blake3:warm"}, p)
	st, err := Status(kv, "r")
	require.NoError(t, err)
	require.Equal(t, spec, st.Spec)
	// Collecting unused blobs must not take it.
	live, _, err := Blobs(kv)
	require.NoError(t, err)
	require.True(t, live["blake3:warm"])

	spec.StartAdapter = "blake3:other"
	res, err := Apply(kv, CreateRunCmd{Now: now, Spec: spec})
	require.NoError(t, err)
	require.ErrorContains(t, res.Err, "StartAdapter")
}
