package backup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// FuzzDecodePack: any bytes are an error or records that encode to a pack of the
// same records.
func FuzzDecodePack(f *testing.F) {
	some := []replay.Record{
		{Item: replay.Item{LogID: "a", Digest: "blake3:00", Size: 3}, Bytes: []byte("abc")},
		{Item: replay.Item{LogID: "b", Digest: "", Size: 0}, Bytes: []byte{}},
	}
	f.Add(encodePack(some))
	f.Add(encodePack(nil))
	f.Add([]byte(packMagic))
	f.Add(encoder().EncodeAll([]byte{200, 1, 1, 1}, []byte(packMagic)))
	f.Fuzz(func(t *testing.T, b []byte) {
		recs, err := decodePack(b)
		if err != nil {
			require.ErrorIs(t, err, errPack)
			return
		}
		again, err := decodePack(encodePack(recs))
		require.NoError(t, err)
		require.Equal(t, recs, again)
	})
}
