package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// incoming is a blob that is here or comes in; others read it meanwhile.
type incoming struct {
	digest string

	mu      sync.Mutex
	data    []byte // grows in place up to size
	size    int64  // -1: not known yet
	done    bool   // complete and verified
	err     error  // given up
	changed chan struct{}
}

func newIncoming(digest string) *incoming {
	return &incoming{digest: digest, size: -1, changed: make(chan struct{})}
}

// update changes the blob and wakes who waits for it.
func (b *incoming) update(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *incoming) length() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(len(b.data))
}

// wait returns the blob when it is complete, or why it never will be.
func (b *incoming) wait(ctx context.Context) ([]byte, error) {
	for {
		b.mu.Lock()
		data, done, err, changed := b.data, b.done, b.err, b.changed
		b.mu.Unlock()
		if done {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take receives what follows the bytes that are here, to the end.
func (b *incoming) take(recv func() (*pb.BlobChunk, error)) error {
	c, err := recv()
	if err != nil {
		return err
	}
	size := c.GetSize()
	switch have := b.length(); {
	case c.GetDigest() != b.digest:
		return fmt.Errorf("%w: blob %s sent where %s was asked", replay.ErrInvalid, c.GetDigest(), b.digest)
	case size < 0 || size > maxBlob || size < have:
		return fmt.Errorf("%w: blob %s of %d bytes: %d are here, at most %d are allowed", replay.ErrInvalid, b.digest, size, have, maxBlob)
	}
	b.mu.Lock()
	known := b.size
	b.mu.Unlock()
	if known >= 0 && known != size {
		return fmt.Errorf("%w: blob %s of %d bytes: it was announced with %d", replay.ErrInvalid, b.digest, size, known)
	}
	if known < 0 {
		b.update(func() { b.size, b.data = size, make([]byte, 0, size) })
	}
	for ; err == nil; c, err = recv() {
		if b.length()+int64(len(c.GetData())) > size {
			return fmt.Errorf("%w: blob %s is longer than the %d bytes announced", replay.ErrInvalid, b.digest, size)
		}
		b.update(func() { b.data = append(b.data, c.GetData()...) })
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if have := b.length(); have != size {
		return fmt.Errorf("%w: blob %s ended after %d of %d bytes", replay.ErrUnavailable, b.digest, have, size)
	}
	return nil
}

// verify completes the blob if it is what its digest says.
func (b *incoming) verify() error {
	if got := blob.Digest(b.data); got != b.digest { // only its owner writes
		return fmt.Errorf("%w: blob announced as %s has digest %s: damaged on the way", replay.ErrInvalid, b.digest, got)
	}
	b.update(func() { b.done = true })
	return nil
}

// send passes the blob on from an offset, as it comes in.
func (b *incoming) send(ctx context.Context, offset int64, send func(*pb.BlobChunk) error) error {
	if offset < 0 {
		return fmt.Errorf("%w: offset = %d: want 0 or more", replay.ErrInvalid, offset)
	}
	for first := true; ; {
		b.mu.Lock()
		data, size, err, changed := b.data, b.size, b.err, b.changed
		b.mu.Unlock()
		if err != nil {
			return fmt.Errorf("%w: blob %s is not here any more: fetch the rest elsewhere", replay.ErrUnavailable, b.digest)
		}
		if size >= 0 && offset > size {
			return fmt.Errorf("%w: offset = %d: blob %s has %d bytes", replay.ErrInvalid, offset, b.digest, size)
		}
		if have := int64(len(data)); have > offset || size >= 0 && first {
			piece := &pb.BlobChunk{}
			if first {
				piece.Digest, piece.Size, first = b.digest, size, false
			}
			if end := min(have, offset+blobPiece); end > offset {
				piece.Data, offset = data[offset:end], end
			}
			if err := send(piece); err != nil {
				return err
			}
			continue
		}
		if size >= 0 && offset == size {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
