package replay

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay/table"
)

// FuzzCommand: any bytes decode to an error or to a command that encodes to
// something that decodes the same, and applying it never breaks the state.
func FuzzCommand(f *testing.F) {
	for _, c := range []Command{
		CreateRunCmd{epoch, testSpec}, FinishRunCmd{epoch, "r"}, TakeTicketsCmd{epoch, "r", "w", 3, "q"}, ReturnTicketCmd{epoch, "r", "r/train/0", "w"},
		AppendItemsCmd{epoch, []Item{demoRecord("a", 3).Item, {LogID: "x", Run: "r", Table: "train", Group: "r/train/0", GroupSize: 2}}},
		TickCmd{epoch.Add(time.Hour)}, AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Holder: "h", Groups: 1, TTL: 1}}, ExtendLeaseCmd{epoch, "r", 1, 1},
		CommitStepCmd{epoch, StepRecord{Run: "r", Step: 1, Version: 1, Lease: 1, Checkpoint: "c", Adapter: "a", Metrics: map[string]float64{"x": 1}}},
		ReleaseLeaseCmd{epoch, "r", 1, "x"}, RequestEvalCmd{epoch, EvalRequest{"r", 0, 1, 2}},
		SetTableCmd{epoch, "r", "x", table.Default(), 0}, SetTableCmd{epoch, "r", "y", table.Default(), 1},
		InsertGroupsCmd{epoch, "r", "y", []GroupInsert{{Group: "g", LogIDs: []string{"a"}}}}, UpdatePrioritiesCmd{epoch, "r", "y", []GroupPriority{{"g", 2}}},
		RemoveGroupsCmd{epoch, "r", "y", []string{"g"}, "x"}, DeleteLogsCmd{epoch, "r", []string{"a"}, "x"},
		AppendItemsCmd{epoch, []Item{{LogID: "z", Run: "r", Table: "y", Group: "h", GroupSize: 2, Digest: "d", Status: 1, Tokens: 1}}},
		AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Table: "y", Holder: "h", Groups: 1, TTL: 1}},
		RedactLogsCmd{epoch, "r", []Redaction{{"a", "d", "e", 3}}, "x"}, DropTableCmd{epoch, "r", "y"}, ForgetDeletedCmd{epoch, epoch, 3},
		ImportLogsCmd{epoch, "r", []Item{{LogID: "z", Run: "r", Table: "train", Group: "h", GroupSize: 2, Digest: "d", Status: 1, Tokens: 1}},
			[]ImportGroup{{Table: "train", Group: "h", State: "consumed", Size: 2, LogIDs: []string{"z"}}, {Table: "y", Group: "i", State: "ready", Size: 1, LogIDs: []string{"z"}, Priority: 1}},
			Policy{Run: "r", Version: 2, Adapter: "a"}},
	} {
		b, err := EncodeCommand(c)
		require.NoError(f, err)
		f.Add(b)
	}
	base := NewMemKV()
	for _, c := range []Command{CreateRunCmd{epoch, testSpec}, TakeTicketsCmd{epoch, "r", "w", 2, "q"}, SetTableCmd{epoch, "r", "y", table.Default(), 0}} {
		_, err := Apply(base, c)
		require.NoError(f, err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCommand(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		again, err := EncodeCommand(c)
		require.NoError(t, err)
		c2, err := DecodeCommand(again)
		require.NoError(t, err)
		twice, err := EncodeCommand(c2)
		require.NoError(t, err)
		require.Equal(t, again, twice)
		kv := newOverlay(base)
		res, err := Apply(kv, c)
		require.NoError(t, err)
		require.Contains(t, []error{nil, ErrStale, ErrNotFound, ErrInvalid}, kindOf(res.Err))
		_, err = Status(kv, "r")
		require.NoError(t, err)
	})
}

// FuzzSnapshot: any bytes are a bad snapshot or a whole one.
func FuzzSnapshot(f *testing.F) {
	var buf bytes.Buffer
	kv := NewMemKV()
	_, err := Apply(kv, CreateRunCmd{epoch, testSpec})
	require.NoError(f, err)
	require.NoError(f, writeSnapshot(&buf, kv, 7))
	f.Add(buf.Bytes())
	f.Add(buf.Bytes()[:buf.Len()-3])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := readSnapshot(bytes.NewReader(b), func(k, _ []byte) error {
			if len(k) == 0 {
				t.Fatal("empty key")
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrBadSnapshot) {
			t.Fatal(err)
		}
	})
}
