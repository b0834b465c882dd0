package replay

import (
	"bytes"
	"context"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPackedRecords: a frame is stored and read as it came, and reads back as
// the bytes it was made of; what does not compress stays as it is.
func TestPackedRecords(t *testing.T) {
	l := openLocal(t, t.TempDir(), testOptions())
	ctx := context.Background()
	random := make([]byte, 2000)
	_, err := rand.Read(random)
	require.NoError(t, err)
	recs := []Record{demoRecord("text", 1), demoRecord("random", 1), demoRecord("tiny", 1)}
	for i, b := range [][]byte{bytes.Repeat([]byte("the prompt "), 500), random, []byte("x")} {
		recs[i].Bytes, recs[i].Item.Size = b, uint32(len(b))
	}
	var packed []Record
	for i, r := range recs {
		p := r.Pack()
		require.Equal(t, i == 0, len(p.Zstd) > 0)
		require.Equal(t, p, p.Pack(), "packing twice")
		back, err := p.Unpack()
		require.NoError(t, err)
		require.Equal(t, r, back)
		packed = append(packed, p)
	}
	require.NoError(t, l.PutChunk(ctx, 1, packed))
	apply(t, l, CreateRunCmd{epoch, testSpec})
	apply(t, l, AppendItemsCmd{Now: epoch, Items: items(recs...)})
	got, missing, err := l.ReadPacked([]string{"text", "random", "tiny"})
	require.NoError(t, err)
	require.Empty(t, missing)
	for i := range got {
		require.Equal(t, packed[i].Zstd, got[i].Zstd)
		require.Equal(t, packed[i].Bytes, got[i].Bytes)
	}
	got, _, err = l.ReadRecords([]string{"text", "random", "tiny"})
	require.NoError(t, err)
	for i := range got {
		require.Equal(t, recs[i].Bytes, got[i].Bytes)
	}
}

// TestUnpackRefuses: a frame that is damaged or lies about its size is an error
// and takes no more memory than the item says.
func TestUnpackRefuses(t *testing.T) {
	r := demoRecord("a", 1)
	r.Bytes = bytes.Repeat([]byte("the prompt "), 500)
	r.Item.Size = uint32(len(r.Bytes))
	good := r.Pack()
	for name, change := range map[string]func(*Record){
		"cut":       func(r *Record) { r.Zstd = r.Zstd[:len(r.Zstd)/2] },
		"too small": func(r *Record) { r.Item.Size-- },
		"too large": func(r *Record) { r.Item.Size++ },
		"huge":      func(r *Record) { r.Item.Size = 1 << 31 },
		"no frame":  func(r *Record) { r.Zstd = []byte("not zstd at all") },
	} {
		bad := good
		change(&bad)
		_, err := bad.Unpack()
		require.ErrorIs(t, err, ErrInvalid, name)
	}
}
