package replay

import (
	"time"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// buried says whether bytes may never be stored again: those of a deleted log,
// or what a log was before it was redacted.
func buried(kv Reader, logID, digest string) (bool, error) {
	s := new(pb.ItemState)
	ok, err := load(kv, itemKey(logID), s)
	if err != nil || !ok {
		return false, err
	}
	if s.Deleted {
		return true, nil
	}
	for _, r := range s.Redactions {
		if r.Digest == digest && s.Item.Digest != digest {
			return true, nil
		}
	}
	return false, nil
}

// Deleted counts what is remembered of logs deleted before a moment.
func Deleted(kv Reader, before time.Time) (n int, err error) {
	prefix := keys.New('D')
	end := prefix.U64(uint64(max(nanos(before), 0)))
	err = kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		if string(k) >= string(end) {
			return false
		}
		n++
		return true
	})
	return n, err
}
