package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skein-rl/skein/replay"
)

// storage is what a node needs of replay.Local, which says what each method
// promises. The tests put faulty ones in its place.
type storage interface {
	PutChunk(ctx context.Context, term uint64, recs []replay.Record) error
	Fence(term uint64) error
	Term() uint64
	ReadPacked(logIDs []string) (recs []replay.Record, missing []replay.Item, err error)
	MissingPayloads(limit int) ([]replay.Item, error)
	Scrub(ctx context.Context) (replay.ScrubReport, error)

	PutBlob(data []byte) (digest string, err error)
	GetBlob(digest string) ([]byte, error)
	HasBlob(digest string) bool
	MissingBlobs() ([]string, error)
	CollectBlobs(now time.Time, grace time.Duration) (n int, size int64, err error)

	Compact(ctx context.Context, now time.Time, grace time.Duration, dead float64) (replay.CompactReport, error)
	Purge(ctx context.Context, now time.Time, grace time.Duration, dead float64) (replay.CompactReport, error)
	VerifyAll(ctx context.Context) (replay.VerifyReport, error)
	ReadExact(logs []replay.Exact) ([]replay.Record, error)

	ApplyBatch(entries []replay.Entry) ([]replay.Result, error)
	AppliedIndex() uint64
	View(fn func(kv replay.Reader) error) error

	Snapshot() *replay.StateSnapshot
	Restore(r io.Reader) error

	Close() error
}

// openStore opens a node's storage; hook is for tests.
func openStore(dir string, cfg Config) (storage, error) {
	opts := cfg.Store
	if opts.Logger == nil {
		opts.Logger = cfg.Logger
	}
	s, err := replay.OpenLocal(dir, opts)
	if err != nil {
		return nil, err
	}
	if cfg.wrapStore != nil {
		return cfg.wrapStore(s), nil
	}
	return s, nil
}

// committed keeps those of the ids that are committed here.
func committed(s storage, ids []string) (found []string, err error) {
	err = s.View(func(kv replay.Reader) error {
		for _, id := range ids {
			_, err := replay.Items(kv, []string{id})
			if errors.Is(err, replay.ErrNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("cluster: look up log %q: %w", id, err)
			}
			found = append(found, id)
		}
		return nil
	})
	return found, err
}
