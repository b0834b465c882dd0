// Package blob stores immutable files under the digest of their contents:
// checkpoints and adapters. Put returns when the file and its directory entry
// are durable; Get verifies the digest of what it read, so that damage on the
// device is an error and never a policy.
package blob

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/replay/internal/disk"
)

// Errors callers tell apart; wrapped with the digest.
var (
	ErrNotFound = errors.New("blob: not found")
	// ErrCorrupt: the file's contents are not its digest's. The file is set
	// aside, so that the blob is missing and can be put again.
	ErrCorrupt = errors.New("blob: corrupt")
	// ErrDiskFull: the free-space watermark is reached.
	ErrDiskFull = disk.ErrFull
	// ErrBadDigest: not "blake3:" and 64 lower-case hex digits.
	ErrBadDigest = errors.New("blob: malformed digest")
)

// Prefix begins every digest.
const Prefix = "blake3:"

// Options of a store. The zero value is usable.
type Options struct {
	MinFree   uint64        // watermark in bytes; 0 = none
	FreeSpace disk.FreeFunc // replaces statfs, for tests
}

// Store is a directory of blobs. Safe for concurrent use; one process a
// directory.
type Store struct {
	dir  string
	opts Options
	// collect keeps a blob that is being put from being collected: Put holds
	// it shared until the time of writing is fresh, Collect alone to delete.
	collect sync.RWMutex
}

// Digest returns the digest under which Put would store data.
func Digest(data []byte) string {
	sum := blake3.Sum256(data)
	return Prefix + hex.EncodeToString(sum[:])
}

// Open opens or creates a store, removing what interrupted puts left behind.
func Open(dir string, opts Options) (*Store, error) {
	if opts.FreeSpace == nil {
		opts.FreeSpace = disk.Free
	}
	s := &Store{dir: dir, opts: opts}
	if err := os.MkdirAll(s.tmp(), 0o700); err != nil {
		return nil, fmt.Errorf("blob: open %s: %w", dir, err)
	}
	left, err := os.ReadDir(s.tmp())
	if err != nil {
		return nil, fmt.Errorf("blob: open %s: %w", dir, err)
	}
	for _, e := range left {
		if err := os.Remove(filepath.Join(s.tmp(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("blob: open %s: %w", dir, err)
		}
	}
	return s, nil
}

func (s *Store) tmp() string { return filepath.Join(s.dir, "tmp") }

// path refuses anything but a digest, so no caller can name a file elsewhere.
func (s *Store) path(digest string) (string, error) {
	name, ok := strings.CutPrefix(digest, Prefix)
	if b, err := hex.DecodeString(name); !ok || err != nil || len(b) != 32 || strings.ToLower(name) != name {
		return "", fmt.Errorf("%w: %q (want %s and 64 hex digits)", ErrBadDigest, digest, Prefix)
	}
	return filepath.Join(s.dir, name[:2], name), nil
}

// Put stores data durably and returns its digest. Putting it again verifies
// what is there.
func (s *Store) Put(data []byte) (string, error) {
	digest := Digest(data)
	s.collect.RLock()
	defer s.collect.RUnlock()
	if _, err := s.Get(digest); err == nil {
		return digest, s.touch(digest)
	}
	if s.opts.MinFree > 0 {
		if err := disk.Check(s.dir, s.opts.FreeSpace, s.opts.MinFree, len(data)); err != nil {
			return "", fmt.Errorf("blob: put %s: %w", digest, err)
		}
	}
	if err := s.write(digest, data); err != nil {
		return "", fmt.Errorf("blob: put %s: %w", digest, disk.Full(err))
	}
	return digest, nil
}

// touch makes an old blob count as written now.
func (s *Store) touch(digest string) error {
	path, err := s.path(digest)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		return fmt.Errorf("blob: put %s: %w", digest, err)
	}
	return nil
}

func (s *Store) write(digest string, data []byte) (err error) {
	path, err := s.path(digest)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.tmp(), "put-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err == nil {
		if err := disk.SyncDir(s.dir); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return disk.SyncDir(dir)
}

// Get returns the blob, verified.
func (s *Store) Get(digest string) ([]byte, error) {
	path, err := s.path(digest)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, digest)
	}
	if err != nil {
		return nil, fmt.Errorf("blob: get %s: %w", digest, err)
	}
	if got := Digest(data); got != digest {
		err := os.Rename(path, path+".corrupt")
		return nil, errors.Join(fmt.Errorf("%w: %s holds %s (set aside; fetch it from another replica)", ErrCorrupt, digest, got), err)
	}
	return data, nil
}

// Has says whether the blob's file is there, without reading it.
func (s *Store) Has(digest string) bool {
	path, err := s.path(digest)
	if err != nil {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// Delete removes a blob; one that is not there is no error.
func (s *Store) Delete(digest string) error {
	path, err := s.path(digest)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blob: delete %s: %w", digest, err)
	}
	return nil
}

// List calls fn for every blob with its size and time of writing, until it
// returns an error.
func (s *Store) List(fn func(digest string, size int64, written time.Time) error) error {
	return filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile
		}
		if err != nil || e.IsDir() {
			return err
		}
		digest := Prefix + e.Name()
		if want, err := s.path(digest); err != nil || want != path {
			return nil //nolint:nilerr // not a blob: leave it alone
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(digest, info.Size(), info.ModTime())
	})
}

// Collect deletes every blob that is not live and was written before the given
// time, and returns how many and their bytes. The time spares blobs that were
// put but whose commit is still on its way.
func (s *Store) Collect(live func(digest string) bool, before time.Time) (n int, size int64, err error) {
	err = s.List(func(digest string, sz int64, written time.Time) error {
		if live(digest) || !written.Before(before) {
			return nil
		}
		gone, err := s.collectOne(digest, before)
		if err != nil || !gone {
			return err
		}
		n++
		size += sz
		return nil
	})
	return n, size, err
}

// collectOne deletes a blob unless it was put again since it was listed.
func (s *Store) collectOne(digest string, before time.Time) (bool, error) {
	s.collect.Lock()
	defer s.collect.Unlock()
	path, err := s.path(digest)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.ModTime().Before(before) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, s.Delete(digest)
}
