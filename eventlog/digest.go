package eventlog

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"sync"
	"time"

	"lukechampine.com/blake3"
)

// digestDomain opens the hashed serialisation and names its version.
const digestDomain = "skein.eventlog.v1\n"

// Digest returns "blake3:<hex>" of everything the log says.
//
// What is hashed is a serialisation of its own, laid out in
// docs/format/eventlog.md: fields in fixed order, integers little-endian of
// fixed width, strings with their length, payloads as canonical JSON, every NaN
// as one bit pattern, times as nanoseconds UTC. It depends on no library, so
// equal logs have equal digests for ever, and Decode(Encode(l)) has l's.
// It is "" for a log whose payload is not JSON, which Validate reports.
func (l *Log) Digest() string {
	sum, ok := l.sum(l.ID)
	if !ok {
		return ""
	}
	return "blake3:" + hex.EncodeToString(sum[:])
}

// contentID derives a UUID (version 8) from all of the log but its id.
func (l *Log) contentID() string {
	sum, _ := l.sum("")
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func (l *Log) sum(id string) (sum [32]byte, ok bool) {
	w := hashers.Get().(*hasher)
	defer w.free()
	w.buf = append(w.buf, digestDomain...)
	m := &l.Meta
	w.str(id)
	w.u8(uint8(l.Tier))
	w.str(m.Run)
	w.str(m.Group)
	w.u32(m.Member)
	w.u32(m.GroupSize)
	w.str(m.Table)
	w.str(m.Source)
	w.str(m.Task)
	w.u32(m.Attempt)
	w.str(m.Worker)
	w.u8(uint8(m.Status))
	w.str(m.Cause)
	w.time(m.Created)
	w.u32(l.Outcome)

	w.u32(uint32(len(l.Events)))
	for i := range l.Events {
		if !w.event(&l.Events[i]) {
			return sum, false
		}
	}
	w.u32(uint32(len(l.Branches)))
	for i := range l.Branches {
		w.branch(&l.Branches[i])
	}
	return w.sum(), true
}

// hasher gathers what is hashed: one long write costs far less than many, and
// most logs fit whole.
type hasher struct {
	h   *blake3.Hasher // nil: everything so far is in buf
	buf []byte
}

const hashAtOnce = 1 << 18

var hashers = sync.Pool{New: func() any { return &hasher{buf: make([]byte, 0, 1<<14)} }}

// free gives the buffer to the next log.
func (w *hasher) free() {
	w.h, w.buf = nil, w.buf[:0]
	hashers.Put(w)
}

func (w *hasher) flush() {
	if len(w.buf) < hashAtOnce {
		return
	}
	if w.h == nil {
		w.h = blake3.New(32, nil)
	}
	w.h.Write(w.buf)
	w.buf = w.buf[:0]
}

func (w *hasher) sum() (sum [32]byte) {
	if w.h == nil {
		return blake3.Sum256(w.buf)
	}
	w.h.Write(w.buf)
	w.h.Sum(sum[:0])
	return sum
}

// column appends a column's length and, part by part, its numbers of 4 bytes.
func column[T any](w *hasher, col []T, put func(dst []byte, part []T)) {
	w.u32(uint32(len(col)))
	for part := range slices.Chunk(col, hashAtOnce/4) {
		w.buf = slices.Grow(w.buf, 4*len(part))
		w.buf = w.buf[:len(w.buf)+4*len(part)]
		put(w.buf[len(w.buf)-4*len(part):], part)
		w.flush()
	}
}

func putIDs(dst []byte, ids []int32) {
	for i, id := range ids {
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(id))
	}
}

func putLogprobs(dst []byte, lps []float32) {
	for i, lp := range lps {
		binary.LittleEndian.PutUint32(dst[4*i:], logprobBits(lp))
	}
}

func (w *hasher) u8(v uint8)   { w.buf = append(w.buf, v) }
func (w *hasher) u32(v uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, v) }
func (w *hasher) u64(v uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, v) }

func (w *hasher) str(s string) {
	w.u32(uint32(len(s)))
	w.buf = append(w.buf, s...)
	w.flush()
}

func (w *hasher) flag(b bool) {
	if b {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

func (w *hasher) time(t time.Time) {
	w.flag(!t.IsZero())
	if !t.IsZero() {
		w.u64(uint64(t.UnixNano()))
	}
}

func (w *hasher) event(e *Event) bool {
	w.u8(uint8(e.Kind))
	w.u32(e.Parent)
	payload := []byte("{}")
	if len(e.Payload) > 0 {
		var err error
		if payload, err = CanonicalJSON(e.Payload); err != nil {
			return false
		}
	}
	w.str(string(payload))
	w.flag(e.Span != nil)
	if e.Span != nil {
		w.u32(e.Branch)
		w.u32(uint32(e.Span.Start))
		w.u32(uint32(e.Span.End))
	}
	w.u8(uint8(e.Scope))
	w.str(e.Author)
	w.str(e.CallID)
	w.time(e.Start)
	w.time(e.End)
	w.flag(e.Partial)
	return true
}

func (w *hasher) branch(b *Branch) {
	w.u32(b.Parent)
	w.u32(uint32(b.Fork))
	w.flag(b.Accepted)
	column(w, b.IDs, putIDs)
	column(w, b.Logprobs, putLogprobs)
	w.u32(uint32(len(b.Runs)))
	for _, r := range b.Runs {
		w.u32(uint32(r.End))
		w.u8(uint8(r.Writer))
		w.u64(r.Version)
		w.flush()
	}
}

// logprobBits maps every NaN to the quiet one.
func logprobBits(lp float32) uint32 {
	if lp != lp {
		return 0x7fc00000
	}
	return math.Float32bits(lp)
}
