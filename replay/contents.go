package replay

import (
	"io"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"google.golang.org/protobuf/proto"
)

// SnapshotContents reads a snapshot (StateSnapshot.WriteTo) and says what
// belongs to it: fn is called with the bytes of every log that it has, and blobs
// are the digests of those to be kept, base models excepted. Until it returns
// without error nothing of it counts. ErrBadSnapshot: the stream is damaged.
func SnapshotContents(r io.Reader, fn func(log Exact, size uint32) error) (applied uint64, blobs []string, err error) {
	kv := NewMemKV() // what blobs follow from: runs and steps
	applied, err = readSnapshot(r, func(k, v []byte) error {
		switch k[0] {
		case 'r', 'd':
			return kv.Set(k, v)
		case 'l':
			s := new(pb.ItemState)
			if err := proto.Unmarshal(v, s); err != nil {
				return err
			}
			if !s.Deleted {
				return fn(Exact{s.GetItem().GetLogId(), s.GetItem().GetDigest()}, s.GetItem().GetSize())
			}
		}
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	seen := map[string]bool{}
	err = eachBlob(kv, func(digest string, keep bool) {
		if keep && !seen[digest] {
			seen[digest] = true
			blobs = append(blobs, digest)
		}
	})
	return applied, blobs, err
}
