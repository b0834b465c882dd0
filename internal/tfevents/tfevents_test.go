package tfevents

import (
	"bytes"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/internal/spread"
)

func sample() ([]byte, []Event) {
	at := time.Unix(1700000000, 500000000)
	events := []Event{
		{Wall: at, Step: 1, Scalars: map[string]float64{"reward": .5, "loss": -.25}, Histograms: map[string]spread.Histogram{}},
		{Wall: at.Add(time.Second), Step: 2, Scalars: map[string]float64{"reward": .75},
			Histograms: map[string]spread.Histogram{"ratio": spread.Of([]float64{.5, 1, 1, 1.5}).Histogram(4)}},
	}
	b := AppendHeader(nil, at)
	for _, e := range events {
		b = Append(b, e)
	}
	return b, events
}

func read(b []byte) (events []Event, err error) {
	err = Decode(bytes.NewReader(b), func(e Event) error {
		events = append(events, e)
		return nil
	})
	return events, err
}

func TestRoundTrip(t *testing.T) {
	b, want := sample()
	got, err := read(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	if path := os.Getenv("SKEIN_TFEVENTS_OUT"); path != "" { // for TensorBoard's own reader
		require.NoError(t, os.WriteFile(path, b, 0o644))
	}
}

// RFC 3720, appendix B.4: CRC-32C of 32 zero bytes is 8a9136aa; TensorFlow's
// mask rotates it right by 15 bits and adds a constant.
func TestChecksum(t *testing.T) {
	c := uint32(0x8a9136aa)
	require.Equal(t, (c>>15|c<<17)+0xa282ead8, masked(make([]byte, 32)))
}

func TestHeaderBytes(t *testing.T) {
	// The record that TensorFlow itself writes first, at wall time 0.
	b := AppendHeader(nil, time.Unix(0, 0))
	require.Equal(t, uint8(24), b[0], "9 bytes of wall time, 15 of version")
	require.Equal(t, "0900000000000000001a0d"+hex.EncodeToString([]byte("brain.Event:2")), hex.EncodeToString(b[12:36]))
}

func TestFileName(t *testing.T) {
	require.Equal(t, "events.out.tfevents.1700000000.host.7.0", FileName(time.Unix(1700000000, 0), "host", 7, 0))
}

func TestCutOrDamaged(t *testing.T) {
	b, want := sample()
	for cut := range len(b) {
		got, err := read(b[:cut])
		if cut == 0 || err == nil {
			continue // at a boundary
		}
		require.ErrorIs(t, err, ErrCorrupt)
		require.LessOrEqual(t, len(got), len(want))
	}
	for i := range b {
		bad := append([]byte(nil), b...)
		bad[i] ^= 0x40
		_, err := read(bad)
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", i)
	}
}

func FuzzDecode(f *testing.F) {
	b, _ := sample()
	f.Add(b)
	f.Add([]byte{})
	f.Add(appendRecord(appendRecord(nil, b[12:36]), []byte{0x2a, 3, 0x0a, 1, 0x2a}))
	f.Fuzz(func(t *testing.T, data []byte) {
		events, err := read(data)
		if err == nil && len(data) > 0 {
			for _, e := range events {
				require.NotNil(t, e.Scalars)
			}
		}
	})
}
