package replay

import (
	"fmt"

	"github.com/skein-rl/skein/replay/segment"
)

// Pack returns the record with its bytes compressed, or as it is when that would
// not save an eighth. A record is packed once, by whoever brings it into the
// store; replicas keep the frame as it is.
func (r Record) Pack() Record {
	if len(r.Zstd) > 0 {
		r.Bytes = nil
		return r
	}
	if z := segment.Compress(r.Bytes); z != nil {
		r.Bytes, r.Zstd = nil, z
	}
	return r
}

// Unpack returns the record with its Bytes and without a frame. ErrInvalid: the
// frame is damaged, or is not of Item.Size bytes.
func (r Record) Unpack() (Record, error) {
	if len(r.Zstd) == 0 {
		return r, nil
	}
	b, err := segment.Decompress(r.Zstd, int(r.Item.Size))
	if err != nil {
		return r, fmt.Errorf("%w: log %q: %w", ErrInvalid, r.Item.LogID, err)
	}
	r.Bytes, r.Zstd = b, nil
	return r, nil
}

// Stored is how many bytes the record takes as it is.
func (r Record) Stored() int { return len(r.Bytes) + len(r.Zstd) }

// checkRecord refuses what could never be stored.
func checkRecord(r *Record) error {
	if err := r.Item.Validate(); err != nil {
		return err
	}
	if n := max(r.Stored(), int(r.Item.Size)); n > segment.MaxPayload {
		return fmt.Errorf("%w: log %q of %d bytes: want at most %d", ErrInvalid, r.Item.LogID, n, segment.MaxPayload)
	}
	if len(r.Item.Digest) > 255 {
		return fmt.Errorf("%w: log %q: digest of %d bytes, want at most 255", ErrInvalid, r.Item.LogID, len(r.Item.Digest))
	}
	if len(r.Zstd) == 0 && int(r.Item.Size) != len(r.Bytes) {
		return fmt.Errorf("%w: log %q: Size = %d, it has %d bytes", ErrInvalid, r.Item.LogID, r.Item.Size, len(r.Bytes))
	}
	return nil
}
