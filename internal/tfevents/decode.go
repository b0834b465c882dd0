package tfevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/skein-rl/skein/internal/spread"
)

// ErrCorrupt marks bytes that are no intact event file. A file cut short inside
// its last record, as after a crash, is one too, after its whole events.
var ErrCorrupt = errors.New("tfevents: corrupt")

// maxRecord bounds a record, so that a damaged length costs nothing.
const maxRecord = 64 << 20

// Decode reads a file's events in order, the version record left out, and hands
// each to f; f's error ends it.
func Decode(r io.Reader, f func(Event) error) error {
	in := bufio.NewReader(r)
	for at := int64(0); ; {
		bad := func(format string, a ...any) error {
			return fmt.Errorf("%w: record at byte %d: %s", ErrCorrupt, at, fmt.Sprintf(format, a...))
		}
		var head [12]byte
		if n, err := io.ReadFull(in, head[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return bad("%d bytes of a header of 12: %v", n, err)
		}
		n := binary.LittleEndian.Uint64(head[:])
		if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) {
			return bad("checksum of its length")
		}
		if n > maxRecord {
			return bad("%d bytes, at most %d", n, maxRecord)
		}
		body := make([]byte, n+4)
		if k, err := io.ReadFull(in, body); err != nil {
			return bad("%d of %d bytes: %v", k, len(body), err)
		}
		payload := body[:n]
		if masked(payload) != binary.LittleEndian.Uint32(body[n:]) {
			return bad("checksum of its payload")
		}
		e, version, err := decodeEvent(payload)
		switch {
		case err != nil:
			return bad("%v", err)
		case at == 0 && version != fileVersion:
			return bad("version %q, want %q", version, fileVersion)
		case at > 0:
			if err := f(e); err != nil {
				return err
			}
		}
		at += 16 + int64(n)
	}
}

// fields visits a message's fields: number for varints and fixed ones, bytes for
// the rest.
func fields(b []byte, f func(n protowire.Number, x uint64, bytes []byte) error) error {
	for len(b) > 0 {
		n, kind, k := protowire.ConsumeTag(b)
		if k < 0 {
			return protowire.ParseError(k)
		}
		b = b[k:]
		var x uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			x, k = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			x, k = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var y uint32
			y, k = protowire.ConsumeFixed32(b)
			x = uint64(y)
		case protowire.BytesType:
			bytes, k = protowire.ConsumeBytes(b)
		default:
			return fmt.Errorf("field %d has wire type %d", n, kind)
		}
		if k < 0 {
			return protowire.ParseError(k)
		}
		b = b[k:]
		if err := f(n, x, bytes); err != nil {
			return err
		}
	}
	return nil
}

func decodeEvent(b []byte) (e Event, version string, err error) {
	e.Scalars, e.Histograms = map[string]float64{}, map[string]spread.Histogram{}
	err = fields(b, func(n protowire.Number, x uint64, bytes []byte) error {
		switch n {
		case eventWall:
			s, frac := math.Modf(math.Float64frombits(x))
			e.Wall = time.Unix(int64(s), int64(frac*1e9))
		case eventStep:
			e.Step = int64(x)
		case eventVersion:
			version = string(bytes)
		case eventSummary:
			return fields(bytes, func(n protowire.Number, _ uint64, bytes []byte) error {
				if n != summaryValue {
					return nil
				}
				return e.value(bytes)
			})
		}
		return nil
	})
	return e, version, err
}

func (e *Event) value(b []byte) error {
	tag, scalar, isScalar := "", 0.0, false
	var histo *spread.Histogram
	err := fields(b, func(n protowire.Number, x uint64, bytes []byte) error {
		switch n {
		case valueTag:
			tag = string(bytes)
		case valueSimple:
			scalar, isScalar = float64(math.Float32frombits(uint32(x))), true
		case valueHisto:
			histo = &spread.Histogram{}
			return decodeHistogram(histo, bytes)
		}
		return nil
	})
	if isScalar {
		e.Scalars[tag] = scalar
	}
	if histo != nil {
		e.Histograms[tag] = *histo
	}
	return err
}

func decodeHistogram(h *spread.Histogram, b []byte) error {
	doubles := func(dst *[]float64, b []byte) error {
		if len(b)%8 != 0 {
			return fmt.Errorf("%d bytes of doubles", len(b))
		}
		for ; len(b) > 0; b = b[8:] {
			*dst = append(*dst, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		}
		return nil
	}
	return fields(b, func(n protowire.Number, x uint64, bytes []byte) error {
		v := math.Float64frombits(x)
		switch n {
		case histoMin:
			h.Min = v
		case histoMax:
			h.Max = v
		case histoNum:
			h.Num = v
		case histoSum:
			h.Sum = v
		case histoSquares:
			h.Squares = v
		case histoLimits:
			return doubles(&h.Limits, bytes)
		case histoCounts:
			return doubles(&h.Counts, bytes)
		}
		return nil
	})
}
