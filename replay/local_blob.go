package replay

import (
	"errors"
	"fmt"
	"time"
)

// PutBlob stores data durably here under its digest.
func (l *Local) PutBlob(data []byte) (digest string, err error) {
	digest, err = l.blobs.Put(data)
	if err = storageError(err); errors.Is(err, ErrDiskFull) {
		l.m.diskFull.Inc()
	}
	return digest, err
}

// GetBlob returns a blob, its digest verified. ErrNotFound also when the file
// was damaged: get it from another replica and put it again.
func (l *Local) GetBlob(digest string) ([]byte, error) {
	b, err := l.blobs.Get(digest)
	return b, storageError(err)
}

// HasBlob says whether a blob is here, without reading it.
func (l *Local) HasBlob(digest string) bool { return l.blobs.Has(digest) }

// MissingBlobs lists the digests that must be kept and are not on this node, for
// repair. Base digests are not blobs of the store and are left out.
func (l *Local) MissingBlobs() ([]string, error) {
	var out []string
	seen := map[string]bool{}
	err := l.View(func(kv Reader) error {
		return eachBlob(kv, func(digest string, keep bool) {
			if !keep || seen[digest] {
				return
			}
			seen[digest] = true
			if !l.blobs.Has(digest) {
				out = append(out, digest)
			}
		})
	})
	return out, err
}

// CollectBlobs deletes blobs that no policy, step or run refers to and that
// were put longer than grace ago (a blob is put before the commit that refers
// to it), and at once the checkpoints that runs no longer keep. It returns how
// many and their bytes.
func (l *Local) CollectBlobs(now time.Time, grace time.Duration) (n int, size int64, err error) {
	if grace <= 0 {
		return 0, 0, fmt.Errorf("%w: collect blobs: grace = %v, want longer than a commit may take", ErrInvalid, grace)
	}
	var live, expired map[string]bool
	if err := l.View(func(kv Reader) (err error) {
		live, expired, err = Blobs(kv)
		return err
	}); err != nil {
		return 0, 0, err
	}
	for _, c := range []struct {
		keep   func(digest string) bool
		before time.Time
	}{
		{func(d string) bool { return !expired[d] }, now},
		{func(d string) bool { return live[d] }, now.Add(-grace)},
	} {
		k, bytes, err := l.blobs.Collect(c.keep, c.before)
		n, size = n+k, size+bytes
		if err != nil {
			return n, size, storageError(err)
		}
	}
	return n, size, nil
}
