// Package tfevents writes and reads TensorBoard's event files, scalars and
// histograms alone. A file is a sequence of records
//
//	u64 length | u32 masked CRC-32C of those 8 bytes | payload | u32 masked CRC-32C of the payload
//
// integers little-endian, mask(c) = rotr(c, 15) + 0xa282ead8 (TensorFlow's
// TFRecord); a payload is an Event message (tensorflow/core/util/event.proto,
// tensorflow/core/framework/summary.proto), the first one the file's version.
package tfevents

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/skein-rl/skein/internal/spread"
)

// Event is what happened at a step. Non-finite scalars are written as they are;
// TensorBoard shows them as gaps.
type Event struct {
	Wall       time.Time
	Step       int64
	Scalars    map[string]float64 // by tag; kept as f32
	Histograms map[string]spread.Histogram
}

const fileVersion = "brain.Event:2"

// Field numbers.
const (
	eventWall, eventStep, eventVersion, eventSummary = 1, 2, 3, 5
	summaryValue                                     = 1
	valueTag, valueSimple, valueHisto                = 1, 2, 5
	histoMin, histoMax, histoNum, histoSum           = 1, 2, 3, 4
	histoSquares, histoLimits, histoCounts           = 5, 6, 7
)

// FileName is the name TensorBoard looks for; n tells files of one second apart.
func FileName(created time.Time, host string, pid, n int) string {
	return fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", created.Unix(), host, pid, n)
}

// AppendHeader appends the record a file begins with.
func AppendHeader(b []byte, created time.Time) []byte {
	e := appendDouble(nil, eventWall, seconds(created))
	e = protowire.AppendTag(e, eventVersion, protowire.BytesType)
	return appendRecord(b, protowire.AppendString(e, fileVersion))
}

// Append appends an event's record. Equal events give equal bytes.
func Append(b []byte, e Event) []byte {
	var sum []byte
	value := func(tag string, rest []byte) {
		v := protowire.AppendTag(nil, valueTag, protowire.BytesType)
		v = append(protowire.AppendString(v, tag), rest...)
		sum = protowire.AppendTag(sum, summaryValue, protowire.BytesType)
		sum = protowire.AppendBytes(sum, v)
	}
	for _, tag := range slices.Sorted(maps.Keys(e.Scalars)) {
		v := protowire.AppendTag(nil, valueSimple, protowire.Fixed32Type)
		value(tag, protowire.AppendFixed32(v, math.Float32bits(float32(e.Scalars[tag]))))
	}
	for _, tag := range slices.Sorted(maps.Keys(e.Histograms)) {
		v := protowire.AppendTag(nil, valueHisto, protowire.BytesType)
		value(tag, protowire.AppendBytes(v, histogram(e.Histograms[tag])))
	}
	out := appendDouble(nil, eventWall, seconds(e.Wall))
	out = protowire.AppendTag(out, eventStep, protowire.VarintType)
	out = protowire.AppendVarint(out, uint64(e.Step))
	out = protowire.AppendTag(out, eventSummary, protowire.BytesType)
	return appendRecord(b, protowire.AppendBytes(out, sum))
}

func histogram(h spread.Histogram) []byte {
	var b []byte
	for _, f := range []struct {
		n protowire.Number
		v float64
	}{{histoMin, h.Min}, {histoMax, h.Max}, {histoNum, h.Num}, {histoSum, h.Sum}, {histoSquares, h.Squares}} {
		b = appendDouble(b, f.n, f.v)
	}
	for _, f := range []struct {
		n protowire.Number
		v []float64
	}{{histoLimits, h.Limits}, {histoCounts, h.Counts}} {
		b = protowire.AppendTag(b, f.n, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(8*len(f.v)))
		for _, x := range f.v {
			b = protowire.AppendFixed64(b, math.Float64bits(x))
		}
	}
	return b
}

func appendDouble(b []byte, n protowire.Number, v float64) []byte {
	b = protowire.AppendTag(b, n, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(v))
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

func appendRecord(b, payload []byte) []byte {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(payload)))
	b = append(b, n[:]...)
	b = binary.LittleEndian.AppendUint32(b, masked(n[:]))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, masked(payload))
}
