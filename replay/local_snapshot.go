package replay

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/dgraph-io/badger/v4"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// A snapshot is the fold's state in key order, streamed:
//
//	"SKEINSNP" | version u32 | applied u64 | zstd stream of
//	  { keyLen uvarint (> 0) | valueLen uvarint | key | value }
//	  0 uvarint | pairs u64 | CRC-32C of the stream so far u32
//
// numbers little-endian. Payload bytes and blobs are not in it: a replica that
// restores one lists what it lacks in MissingPayloads.
const (
	snapshotMagic   = "SKEINSNP"
	snapshotVersion = 1
	maxPairBytes    = 4 << 20
)

var snapshotCRC = crc32.MakeTable(crc32.Castagnoli)

// StateSnapshot is the fold's state as of one applied entry; writes go on
// meanwhile. Close it.
type StateSnapshot struct {
	Applied uint64
	txn     *badger.Txn
	prefix  []byte
}

// Snapshot takes a snapshot; it costs nothing until it is written out.
func (l *Local) Snapshot() *StateSnapshot {
	l.write.Lock()
	defer l.write.Unlock()
	txn, prefix := l.beginState()
	return &StateSnapshot{Applied: l.applied, txn: txn, prefix: prefix}
}

// Close frees the snapshot.
func (s *StateSnapshot) Close() { s.txn.Discard() }

// countWriter counts what passes.
type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// WriteTo streams the snapshot.
func (s *StateSnapshot) WriteTo(out io.Writer) (int64, error) {
	w := &countWriter{w: out}
	err := writeSnapshot(w, txnReader{s.txn, s.prefix}, s.Applied)
	if err != nil {
		err = fmt.Errorf("replay: write snapshot at %d: %w", s.Applied, err)
	}
	return w.n, err
}

func writeSnapshot(w io.Writer, kv Reader, applied uint64) error {
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	if _, err := w.Write(binary.LittleEndian.AppendUint64(head, applied)); err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	crc := crc32.New(snapshotCRC)
	b := bufio.NewWriterSize(io.MultiWriter(z, crc), 1<<16)
	var pairs uint64
	var buf []byte
	var bad error
	err = kv.Iterate(nil, nil, func(k, v []byte) bool {
		buf = binary.AppendUvarint(binary.AppendUvarint(buf[:0], uint64(len(k))), uint64(len(v)))
		for _, part := range [][]byte{buf, k, v} {
			if _, bad = b.Write(part); bad != nil {
				return false
			}
		}
		pairs++
		return true
	})
	if err = errors.Join(err, bad); err == nil {
		_, err = b.Write(binary.LittleEndian.AppendUint64([]byte{0}, pairs))
	}
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		_, err = z.Write(binary.LittleEndian.AppendUint32(nil, crc.Sum32()))
	}
	return errors.Join(err, z.Close())
}

// ErrBadSnapshot: the stream is no snapshot, or is damaged or cut short.
var ErrBadSnapshot = errors.New("replay: bad snapshot")

// crcReader feeds what it reads to a checksum.
type crcReader struct {
	r   *bufio.Reader
	crc hash.Hash32
	one [1]byte
}

func (c *crcReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.crc.Write(b[:n])
	return n, err
}

func (c *crcReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.one[0] = b
		c.crc.Write(c.one[:])
	}
	return b, err
}

// readSnapshot calls fn for every pair, then verifies the whole. Until it
// returns without error nothing fn saw may count.
func readSnapshot(r io.Reader, fn func(key, value []byte) error) (applied uint64, err error) {
	var head [20]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, fmt.Errorf("%w: header: %w", ErrBadSnapshot, err)
	}
	if string(head[:8]) != snapshotMagic {
		return 0, fmt.Errorf("%w: does not begin with %q", ErrBadSnapshot, snapshotMagic)
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != snapshotVersion {
		return 0, fmt.Errorf("%w: version %d, this build reads %d", ErrBadSnapshot, v, snapshotVersion)
	}
	applied = binary.LittleEndian.Uint64(head[12:])
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return 0, err
	}
	defer z.Close()
	c := &crcReader{r: bufio.NewReaderSize(z, 1<<16), crc: crc32.New(snapshotCRC)}
	var pairs uint64
	for {
		klen, err := binary.ReadUvarint(c)
		if err != nil {
			return 0, fmt.Errorf("%w: after %d pairs: %w", ErrBadSnapshot, pairs, err)
		}
		if klen == 0 {
			break
		}
		vlen, err := binary.ReadUvarint(c)
		if err != nil || klen > maxPairBytes || vlen > maxPairBytes {
			return 0, fmt.Errorf("%w: after %d pairs: lengths %d and %d: %w", ErrBadSnapshot, pairs, klen, vlen, err)
		}
		pair := make([]byte, klen+vlen)
		if _, err := io.ReadFull(c, pair); err != nil {
			return 0, fmt.Errorf("%w: after %d pairs: %w", ErrBadSnapshot, pairs, err)
		}
		if err := fn(pair[:klen:klen], pair[klen:]); err != nil {
			return 0, err
		}
		pairs++
	}
	var tail [12]byte
	if _, err := io.ReadFull(c, tail[:8]); err != nil {
		return 0, fmt.Errorf("%w: count: %w", ErrBadSnapshot, err)
	}
	sum := c.crc.Sum32()
	if _, err := io.ReadFull(c.r, tail[8:]); err != nil {
		return 0, fmt.Errorf("%w: checksum: %w", ErrBadSnapshot, err)
	}
	if n := binary.LittleEndian.Uint64(tail[:]); n != pairs || binary.LittleEndian.Uint32(tail[8:]) != sum {
		return 0, fmt.Errorf("%w: %d of %d pairs, or the checksum differs", ErrBadSnapshot, pairs, n)
	}
	return applied, nil
}

// Restore replaces the state by a snapshot, atomically: until the whole stream
// is read and verified the old state stays, crash or not. ErrBadSnapshot: the
// stream is damaged.
func (l *Local) Restore(r io.Reader) error {
	l.write.Lock()
	defer l.write.Unlock()
	next := l.generation + 1
	applied, err := l.load(r, statePrefix(next))
	if err != nil {
		return errors.Join(fmt.Errorf("replay: restore: %w", err), l.db.dropPrefix(statePrefix(next)))
	}
	l.db.view.Lock()
	err = l.db.tryOne([]write{{metaGeneration, u64(next)}, {metaApplied, u64(applied)}})
	if err == nil {
		l.generation, l.applied, l.failed = next, applied, nil
	}
	l.db.view.Unlock()
	if err != nil {
		return fmt.Errorf("replay: restore: %w", err)
	}
	if err := l.dropOtherGenerations(); err != nil {
		return fmt.Errorf("replay: restored, but the old state remains: %w", err)
	}
	return nil
}

// load writes a snapshot's pairs under prefix and marks the logs whose bytes
// are not here. Marks of a snapshot that turns out bad do no harm: they name
// logs the state does not have.
func (l *Local) load(r io.Reader, prefix []byte) (applied uint64, err error) {
	if err := l.db.dropPrefix(prefix); err != nil {
		return 0, err
	}
	txn := l.db.begin()
	defer txn.Discard()
	var batch []write
	size := 0
	applied, err = readSnapshot(r, func(k, v []byte) error {
		batch = append(batch, write{append(append([]byte(nil), prefix...), k...), orEmpty(v)})
		size += len(k) + len(v)
		if k[0] == 'l' {
			s := new(pb.ItemState)
			if err := proto.Unmarshal(v, s); err != nil {
				return fmt.Errorf("%w: key %q: %w", ErrBadSnapshot, k, err)
			}
			if s.Deleted {
				return nil
			}
			_, here, err := l.locate(txn, s.GetItem().GetLogId(), s.GetItem().GetDigest())
			if err != nil {
				return err
			}
			if !here {
				batch = append(batch, write{missingKey(s.GetItem().GetLogId()), []byte{}})
			}
		}
		if size < 1<<20 {
			return nil
		}
		err := l.db.inParts(batch)
		batch, size = nil, 0
		return err
	})
	if err != nil {
		return 0, err
	}
	return applied, l.db.inParts(batch)
}
