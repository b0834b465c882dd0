package tfevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/skein-rl/skein/internal/spread"
)

// ErrCorrupt marks bytes that are no intact event file. A file cut short inside
// its last record, as after a crash, is one too: the events before it are
// returned.
var ErrCorrupt = errors.New("tfevents: corrupt")

// Decode reads a file's events, the version record left out.
func Decode(data []byte) (events []Event, err error) {
	bad := func(at int, format string, a ...any) ([]Event, error) {
		return events, fmt.Errorf("%w: record at byte %d: %s", ErrCorrupt, at, fmt.Sprintf(format, a...))
	}
	for at := 0; at < len(data); {
		rest := data[at:]
		if len(rest) < 12 {
			return bad(at, "%d bytes of a header of 12", len(rest))
		}
		n := binary.LittleEndian.Uint64(rest)
		if masked(rest[:8]) != binary.LittleEndian.Uint32(rest[8:]) {
			return bad(at, "checksum of its length")
		}
		if n > uint64(len(rest)-12) || len(rest)-12-int(n) < 4 {
			return bad(at, "%d bytes of payload, %d left", n, len(rest)-12)
		}
		payload := rest[12 : 12+n]
		if masked(payload) != binary.LittleEndian.Uint32(rest[12+n:]) {
			return bad(at, "checksum of its payload")
		}
		e, version, err := decodeEvent(payload)
		switch {
		case err != nil:
			return bad(at, "%v", err)
		case at == 0 && version != fileVersion:
			return bad(at, "version %q, want %q", version, fileVersion)
		case at > 0:
			events = append(events, e)
		}
		at += 16 + int(n)
	}
	return events, nil
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
