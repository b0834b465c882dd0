package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// blobs keeps content-addressed files on a majority: the same rule as for
// payloads, without ids to commit. A replica that lacks one pulls it and
// checks its digest.
type blobs struct {
	n    *Node
	room *semaphore.Weighted // bytes of blobs in memory
}

func newBlobs(n *Node) *blobs {
	return &blobs{n: n, room: semaphore.NewWeighted(maxBlob)}
}

// put stores a blob here and on the followers and returns when a majority of
// voters has it.
func (b *blobs) put(ctx context.Context, data []byte) (string, error) {
	if err := b.n.mustLead(); err != nil {
		return "", err
	}
	if len(data) > maxBlob {
		return "", fmt.Errorf("%w: blob of %d bytes: at most %d", replay.ErrInvalid, len(data), maxBlob)
	}
	digest := blob.Digest(data)
	b.n.members.RLock()
	defer b.n.members.RUnlock()
	voters, others := b.n.servers()
	type answer struct {
		node string
		err  error
	}
	answers := make(chan answer, len(voters)+len(others))
	voter := make(map[string]bool)
	for _, id := range voters {
		voter[id] = true
	}
	for _, id := range append(voters, others...) {
		if !b.n.tasks.run(func() {
			answers <- answer{id, b.putOn(id, digest, data)}
		}) {
			return "", fmt.Errorf("cluster: node %s is closing: %w", b.n.id, replay.ErrUnavailable)
		}
	}
	need, left := len(voters)/2+1, len(voters)
	var errs []error
	kind := replay.ErrUnavailable
	for need > 0 {
		if left < need {
			return "", fmt.Errorf("cluster: blob %s: no majority holds it: %w: %w", digest, kind, errors.Join(errs...))
		}
		select {
		case a := <-answers:
			if !voter[a.node] {
				continue
			}
			left--
			if a.err == nil {
				need--
				continue
			}
			if errors.Is(a.err, replay.ErrDiskFull) {
				kind = replay.ErrDiskFull
			}
			errs = append(errs, fmt.Errorf("node %s: %w", a.node, a.err))
		case <-ctx.Done():
			return "", fmt.Errorf("cluster: blob %s: no majority answered in time: %w", digest, errors.Join(append(errs, ctx.Err())...))
		}
	}
	return digest, nil
}

// putOn stores a blob on one node, within the time its size allows.
func (b *blobs) putOn(id, digest string, data []byte) error {
	if id == b.n.id {
		_, err := b.n.store.PutBlob(data)
		return err
	}
	p, err := b.n.peers.get(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.n.ctx, b.n.cfg.AppendTimeout+blobTime(len(data)))
	defer cancel()
	st, err := p.PushBlob(ctx)
	if err != nil {
		return p.fail(err)
	}
	return finishPut(sendBlob(digest, data, st.Send), st.CloseAndRecv, p.fail)
}

// get returns a blob, from a peer when it is not here. The digest is checked
// by whoever reads it.
func (b *blobs) get(ctx context.Context, digest string) ([]byte, error) {
	data, err := b.n.store.GetBlob(digest)
	if !errors.Is(err, replay.ErrNotFound) {
		return data, err
	}
	_, leader := b.n.raft.LeaderWithID()
	reached := true
	errs := []error{err}
	for _, p := range b.n.peers.others(string(leader)) {
		data, perr := b.pullFrom(ctx, p, digest)
		if perr == nil {
			if _, serr := b.n.store.PutBlob(data); serr != nil {
				b.n.log.Warn("pulled blob not kept", "digest", digest, "err", serr)
			}
			return data, nil
		}
		if !errors.Is(perr, replay.ErrNotFound) {
			reached = false
			errs = append(errs, fmt.Errorf("node %s: %w", p, perr))
		}
	}
	if reached {
		return nil, err
	}
	// A node that did not answer may have it.
	return nil, fmt.Errorf("cluster: blob %s: %w: %w", digest, replay.ErrUnavailable, errors.Join(errs[1:]...))
}

func (b *blobs) pullFrom(ctx context.Context, p *peer, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, b.n.cfg.AppendTimeout+blobTime(maxBlob))
	defer cancel()
	st, err := p.PullBlob(ctx, &pb.GetBlobRequest{Digest: digest})
	if err != nil {
		return nil, p.fail(err)
	}
	data, err := receiveBlob(ctx, digest, st.Recv, b.room)
	if err != nil {
		return nil, p.fail(err)
	}
	b.room.Release(int64(len(data)))
	return data, nil
}

// need refuses a reference to a blob that is nowhere.
func (b *blobs) need(ctx context.Context, field, digest string) error {
	if b.n.store.HasBlob(digest) {
		return nil
	}
	_, err := b.get(ctx, digest)
	if errors.Is(err, replay.ErrNotFound) {
		return fmt.Errorf("%w: %s = %s is not stored: PutBlob first", replay.ErrInvalid, field, digest)
	}
	return err
}

// repair pulls every blob that runs refer to and that is not here.
func (b *blobs) repair() {
	if b.n.peers == nil {
		return
	}
	missing, err := b.n.store.MissingBlobs()
	if err != nil {
		b.n.log.Warn("look for missing blobs", "err", err)
		return
	}
	for _, digest := range missing {
		if b.n.ctx.Err() != nil {
			return
		}
		if _, err := b.get(b.n.ctx, digest); err != nil {
			b.n.log.Debug("blob not repaired yet", "digest", digest, "err", err)
		}
	}
}

// lacking pulls what is not here and counts what some node that did not answer
// may still have; what no node has counts for nothing.
func (b *blobs) lacking() (n int, err error) {
	missing, err := b.n.store.MissingBlobs()
	for _, digest := range missing {
		if _, err := b.get(b.n.ctx, digest); err != nil && !errors.Is(err, replay.ErrNotFound) {
			n++
		}
	}
	return n, err
}

// PushBlob stores what the leader sends.
func (s *peerServer) PushBlob(st pb.Peer_PushBlobServer) error {
	digest, err := s.n.blobs.receive(st.Context(), st.Recv, func(data []byte) (string, error) {
		return s.n.store.PutBlob(data)
	})
	if err != nil {
		return toStatus(err)
	}
	return st.SendAndClose(&pb.PutBlobResponse{Digest: digest})
}

// receive assembles a blob and hands it to put, holding its room.
func (b *blobs) receive(ctx context.Context, recv func() (*pb.BlobChunk, error), put func([]byte) (string, error)) (string, error) {
	data, err := receiveBlob(ctx, "", recv, b.room)
	if err != nil {
		return "", err
	}
	defer b.room.Release(int64(len(data)))
	return put(data)
}

// PullBlob sends a blob that is here; it asks nobody else.
func (s *peerServer) PullBlob(req *pb.GetBlobRequest, st pb.Peer_PullBlobServer) error {
	data, err := s.n.store.GetBlob(req.GetDigest())
	if err != nil {
		return toStatus(err)
	}
	return toStatus(sendBlob(req.GetDigest(), data, st.Send))
}

// sendBlob cuts a blob into pieces. An empty blob is one empty piece.
func sendBlob(digest string, data []byte, send func(*pb.BlobChunk) error) error {
	return sendBlobFrom(digest, data, 0, send)
}

// sendBlobFrom is sendBlob without the bytes before an offset; the size sent is
// that of the whole.
func sendBlobFrom(digest string, data []byte, offset int64, send func(*pb.BlobChunk) error) error {
	if offset < 0 || offset > int64(len(data)) {
		return fmt.Errorf("%w: offset = %d: blob %s has %d bytes", replay.ErrInvalid, offset, digest, len(data))
	}
	piece := &pb.BlobChunk{Digest: digest, Size: int64(len(data))}
	data = data[offset:]
	for {
		k := min(len(data), blobPiece)
		piece.Data = data[:k]
		data = data[k:]
		if err := send(piece); err != nil {
			return err
		}
		if len(data) == 0 {
			return nil
		}
		piece = &pb.BlobChunk{}
	}
}

// finishPut ends a put: the receiver's reason beats the failure to send.
func finishPut(sent error, finish func() (*pb.PutBlobResponse, error), fail func(error) error) error {
	_, err := finish()
	if err == nil && sent != nil && !errors.Is(sent, io.EOF) {
		err = sent
	}
	return fail(err)
}

// receiveBlob puts a blob together and checks its size and digest. On success
// the blob's size is taken from room; the caller gives it back.
func receiveBlob(ctx context.Context, want string, recv func() (*pb.BlobChunk, error), room *semaphore.Weighted) (data []byte, err error) {
	first, err := recv()
	if err != nil {
		return nil, err
	}
	size, digest := first.GetSize(), first.GetDigest()
	if want != "" && digest != want {
		return nil, fmt.Errorf("%w: blob %s sent where %s was asked", replay.ErrInvalid, digest, want)
	}
	if size < 0 || size > maxBlob {
		return nil, fmt.Errorf("%w: blob %s of %d bytes: at most %d", replay.ErrInvalid, digest, size, maxBlob)
	}
	if err := room.Acquire(ctx, size); err != nil {
		return nil, fmt.Errorf("cluster: blob %s of %d bytes: busy with others: %w", digest, size, err)
	}
	defer func() {
		if err != nil {
			room.Release(size)
		}
	}()
	data = make([]byte, 0, size)
	for c := first; ; {
		if int64(len(data)+len(c.GetData())) > size {
			return nil, fmt.Errorf("%w: blob %s is longer than the %d bytes announced", replay.ErrInvalid, digest, size)
		}
		data = append(data, c.GetData()...)
		if c, err = recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if int64(len(data)) != size {
		return nil, fmt.Errorf("%w: blob %s has %d of the %d bytes announced", replay.ErrInvalid, digest, len(data), size)
	}
	if got := blob.Digest(data); got != digest {
		return nil, fmt.Errorf("%w: blob announced as %s has digest %s: damaged on the way", replay.ErrInvalid, digest, got)
	}
	return data, nil
}
