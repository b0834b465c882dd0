package backup

import (
	"context"
	"fmt"
	"io"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// Contents is a backup as it is read back, every object verified by its digest.
type Contents struct {
	ctx context.Context
	t   Target
	m   Manifest
	// Progress, when set, is told how many of the logs and blobs were read.
	Progress func(done, all int)
	done     int
}

// Open prepares a backup for reading.
func Open(ctx context.Context, t Target, m Manifest) *Contents {
	return &Contents{ctx: ctx, t: t, m: m}
}

// State reads the state snapshot.
func (c *Contents) State() io.Reader { return &stateReader{c: c, pieces: c.m.State} }

type stateReader struct {
	c      *Contents
	pieces []string
	left   []byte
}

func (r *stateReader) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		if len(r.pieces) == 0 {
			return 0, io.EOF
		}
		var err error
		if r.left, err = getChecked(r.c.ctx, r.c.t, stateKey(r.pieces[0]), r.pieces[0]); err != nil {
			return 0, err
		}
		r.pieces = r.pieces[1:]
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Records calls fn with the bytes of logs, a pack at a time; some may not belong
// to this backup. Items have id, digest and size only.
func (c *Contents) Records(fn func([]replay.Record) error) error {
	for _, digest := range c.m.Packs {
		b, err := getChecked(c.ctx, c.t, packKey(digest), digest)
		if err != nil {
			return err
		}
		recs, err := decodePack(b)
		if err != nil {
			return fmt.Errorf("pack %s: %w", digest, err)
		}
		if err := fn(recs); err != nil {
			return err
		}
		c.step(len(recs))
	}
	return nil
}

// Blobs calls fn with every blob.
func (c *Contents) Blobs(fn func([]byte) error) error {
	for _, digest := range c.m.Blobs {
		b, err := getChecked(c.ctx, c.t, blobKey(digest), digest)
		if err == nil {
			err = fn(b)
		}
		if err != nil {
			return err
		}
		c.step(1)
	}
	return nil
}

func (c *Contents) step(n int) {
	c.done += n
	if c.Progress != nil {
		c.Progress(min(c.done, c.m.Logs+len(c.m.Blobs)), c.m.Logs+len(c.m.Blobs))
	}
}

// Check reads a whole backup and verifies that everything its state names is
// there.
func Check(ctx context.Context, t Target, m Manifest) error {
	c := Open(ctx, t, m)
	need := map[replay.Exact]bool{}
	_, blobs, err := replay.SnapshotContents(c.State(), func(x replay.Exact, _ uint32) error {
		need[x] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("backup %q: state: %w", m.Name, err)
	}
	if err := c.Records(func(recs []replay.Record) error {
		for _, r := range recs {
			delete(need, replay.Exact{LogID: r.Item.LogID, Digest: r.Item.Digest})
		}
		return nil
	}); err != nil {
		return fmt.Errorf("backup %q: %w", m.Name, err)
	}
	for x := range need {
		return fmt.Errorf("backup %q lacks %d of its logs, one is %q", m.Name, len(need), x.LogID)
	}
	have := map[string]bool{}
	if err := c.Blobs(func(b []byte) error {
		have[blob.Digest(b)] = true
		return nil
	}); err != nil {
		return fmt.Errorf("backup %q: %w", m.Name, err)
	}
	for _, d := range blobs {
		if !have[d] {
			return fmt.Errorf("backup %q lacks the blob %s", m.Name, d)
		}
	}
	return nil
}
