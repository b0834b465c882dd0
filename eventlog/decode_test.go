package eventlog

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/eventlog/internal/eventlogpb"
)

// wire is a valid message to break.
func wire(t testing.TB) *pb.Log {
	l := &Log{
		ID: "x", Tier: Full, Meta: Meta{Status: OK}, Outcome: 1,
		Events: []Event{{Seq: 1, Kind: Text, Author: "agent", Payload: map[string]any{"text": "hi"}, Span: &Span{1, 3}}},
		Branches: []Branch{
			{IDs: []int32{1, 2, 3}, Logprobs: []float32{nan, -1, -2}, Runs: []Run{{1, Prompt, 0}, {3, Policy, 7}}, Accepted: true},
			{Parent: 0, Fork: 2, IDs: []int32{1, 2, 4}, Logprobs: []float32{nan, -1, -3}, Runs: []Run{{1, Prompt, 0}, {3, Policy, 7}}},
		},
	}
	require.NoError(t, l.Validate())
	return must(toProto(l))
}

func framed(t testing.TB, m *pb.Log) []byte {
	body, err := proto.Marshal(m)
	require.NoError(t, err)
	return frame(body)
}

func TestDecodeForkSharesPrefix(t *testing.T) {
	m := wire(t)
	require.Equal(t, []int32{4}, m.Branches[1].Ids, "the shared prefix is on the wire once")
	require.Equal(t, []float32{-1, -2}, m.Branches[0].Logprobs, "so is a logprob only where one exists")
	l, err := Decode(framed(t, m))
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 4}, l.Branches[1].IDs)
	require.Equal(t, []Run{{1, Prompt, 0}, {3, Policy, 7}}, l.Branches[1].Runs)
	l.Branches[0].IDs[0] = 99
	require.Equal(t, int32(1), l.Branches[1].IDs[0], "branches own their columns")
}

// Every kind of broken bytes has its own error and none panics.
func TestDecodeRefuses(t *testing.T) {
	good := framed(t, wire(t))
	_, err := Decode(good)
	require.NoError(t, err)
	bytesCase := func(change func(b []byte) []byte) func() []byte {
		return func() []byte { return change(append([]byte(nil), good...)) }
	}
	wireCase := func(change func(m *pb.Log)) func() []byte {
		return func() []byte {
			m := wire(t)
			change(m)
			return framed(t, m)
		}
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	for _, c := range []struct {
		name string
		data func() []byte
		is   error
		text string
	}{
		{"empty", func() []byte { return nil }, ErrNotLog, "0 bytes"},
		{"magic", bytesCase(func(b []byte) []byte { b[0] = 'X'; return b }), ErrNotLog, `want "SKEL"`},
		{"short header", bytesCase(func(b []byte) []byte { return b[:10] }), ErrCorrupt, "10 bytes"},
		{"flags", bytesCase(func(b []byte) []byte { b[6] = 1; return b }), ErrCorrupt, "flags 0x0001"},
		{"truncated", bytesCase(func(b []byte) []byte { return b[:len(b)-1] }), ErrCorrupt, "bytes follow"},
		{"trailing", bytesCase(func(b []byte) []byte { return append(b, 0) }), ErrCorrupt, "bytes follow"},
		{"length", bytesCase(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[8:], 1<<31); return b }), ErrCorrupt, "2147483648 bytes follow"},
		{"checksum", bytesCase(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), ErrCorrupt, "checksum"},
		{"not protobuf", func() []byte { return frame([]byte{0xff, 0xff, 0xff}) }, ErrCorrupt, ""},
		{"no meta", wireCase(func(m *pb.Log) { m.Meta = nil }), ErrCorrupt, "no meta"},
		{"no id", wireCase(func(m *pb.Log) { m.Id = "" }), ErrInvalid, `id = ""`},
		{"tier", wireCase(func(m *pb.Log) { m.Tier = 300 }), ErrCorrupt, "tier = 300"},
		{"negative tier", wireCase(func(m *pb.Log) { m.Tier = -1 }), ErrCorrupt, "tier = -1"},
		{"kind", wireCase(func(m *pb.Log) { m.Events[0].Kind = 1000 }), ErrCorrupt, "event 1: eventlog: corrupt: kind = 1000"},
		{"ninth kind", wireCase(func(m *pb.Log) { m.Events[0].Kind = 9 }), ErrInvalid, "kind(9)"},
		{"payload", wireCase(func(m *pb.Log) { m.Events[0].Payload = []byte(`{"text": "hi"}`) }), ErrCorrupt, "not canonical"},
		{"span", wireCase(func(m *pb.Log) { m.Events[0].Span.End = 1 << 31 }), ErrTooLarge, "span"},
		{"span end", wireCase(func(m *pb.Log) { m.Events[0].Span.End = 9 }), ErrInvalid, "span = [1,9)"},
		{"writer", wireCase(func(m *pb.Log) { m.Branches[0].Runs[0].Writer = 400 }), ErrCorrupt, "writer = 400"},
		{"empty run", wireCase(func(m *pb.Log) { m.Branches[0].Runs[0].Length = 0 }), ErrCorrupt, "run 0 has 0 tokens"},
		{"long run", wireCase(func(m *pb.Log) { m.Branches[0].Runs[1].Length = 1<<32 - 1 }), ErrCorrupt, "run 1 has 4294967295 tokens, 2 are left"},
		{"short runs", wireCase(func(m *pb.Log) { m.Branches[0].Runs = m.Branches[0].Runs[:1]; m.Branches[0].Logprobs = nil }), ErrCorrupt, "runs cover 1"},
		{"few logprobs", wireCase(func(m *pb.Log) { m.Branches[0].Logprobs = m.Branches[0].Logprobs[:1] }), ErrCorrupt, "needs 2 logprobs, 1 are left"},
		{"many logprobs", wireCase(func(m *pb.Log) { m.Branches[0].Logprobs = append(m.Branches[0].Logprobs, -1) }), ErrCorrupt, "leave 1 logprobs"},
		{"fork of none", wireCase(func(m *pb.Log) { m.Branches[1].Parent = 7 }), ErrCorrupt, "fork 2 of branch 7"},
		{"fork of itself", wireCase(func(m *pb.Log) { m.Branches[1].Parent = 1 }), ErrCorrupt, "fork 2 of branch 1"},
		{"long fork", wireCase(func(m *pb.Log) { m.Branches[1].Fork = 4 }), ErrCorrupt, "fork 4"},
		{"huge fork", wireCase(func(m *pb.Log) { m.Branches[1].Fork = 1<<32 - 1 }), ErrTooLarge, "tokens"},
		{"new log field", wireCase(func(m *pb.Log) { m.ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "log has a field 99"},
		{"new meta field", wireCase(func(m *pb.Log) { m.Meta.ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "meta has a field 99"},
		{"new event field", wireCase(func(m *pb.Log) { m.Events[0].ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "event has a field 99"},
		{"new span field", wireCase(func(m *pb.Log) { m.Events[0].Span.ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "span has a field 99"},
		{"new branch field", wireCase(func(m *pb.Log) { m.Branches[0].ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "branch has a field 99"},
		{"new run field", wireCase(func(m *pb.Log) { m.Branches[0].Runs[0].ProtoReflect().SetUnknown(unknown) }), ErrCorrupt, "run has a field 99"},
	} {
		_, err := Decode(c.data())
		require.ErrorIs(t, err, c.is, c.name)
		require.ErrorContains(t, err, c.text, c.name)
	}
}

// A future version is refused by its number, before anything else is believed.
func TestDecodeFutureVersion(t *testing.T) {
	for _, data := range [][]byte{[]byte("SKEL\x02\x00"), []byte("SKEL\x02\x00what comes next is not ours to read")} {
		_, err := Decode(data)
		var v *VersionError
		require.True(t, errors.As(err, &v))
		require.Equal(t, uint16(2), v.Version)
		require.ErrorContains(t, err, "wire version 2")
		require.ErrorContains(t, err, "newer skein")
	}
}

// A few bytes must not take gigabytes: lengths inside a file are claims.
func TestDecodeMemory(t *testing.T) {
	// 60,000 branches that each claim the 100,000 tokens of the first: 100 KB of
	// tokens and 6 bytes a branch, 48 GB if believed.
	bomb := wire(t)
	ids := make([]int32, 100_000)
	bomb.Branches = []*pb.Branch{{Ids: ids, Runs: []*pb.Run{{Length: uint32(len(ids)), Writer: pb.Writer_WRITER_PROMPT}}, Accepted: true}}
	for range 60_000 {
		bomb.Branches = append(bomb.Branches, &pb.Branch{Fork: uint32(len(ids))})
	}
	events := []byte{}
	for range MaxEvents + 1 {
		events = append(events, 4<<3|2, 0)
	}
	branches := []byte{}
	for range MaxBranches + 1 {
		branches = append(branches, 5<<3|2, 0)
	}
	for name, c := range map[string]struct {
		data  []byte
		limit uint64
	}{
		"forks":    {framed(t, bomb), 16 * MaxTokens},
		"events":   {frame(events), 1 << 20},
		"branches": {frame(branches), 1 << 20},
		"length":   {[]byte("SKEL\x01\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"), 1 << 20},
		"packed":   {frame([]byte{5<<3 | 2, 6, 3<<3 | 2, 0xff, 0xff, 0xff, 0x7f, 0}), 1 << 20},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(c.data)
		runtime.ReadMemStats(&after)
		require.Error(t, err, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, c.limit, name)
	}
}

// A tree as deep and as wide as a file can make it is checked in linear time.
func TestDecodeHostileShapes(t *testing.T) {
	const n = 50_000
	l := &Log{ID: "x", Meta: Meta{Status: OK}}
	for i := range uint32(n) {
		call := NewToolCall("same", "f", nil)
		call.Author, call.Seq, call.Parent = "agent", i+1, i
		l.Events = append(l.Events, call)
	}
	for i := range uint32(n) {
		res := NewToolResult("same", 1, "")
		res.Author, res.Seq, res.Parent = "tool:f", n+i+1, n
		l.Events = append(l.Events, res)
	}
	got, err := Decode(must(Encode(l)))
	require.NoError(t, err)
	require.Len(t, got.AuditRecords(), n)

	deep := &Log{ID: "x", Tier: Full, Meta: Meta{Status: OK}, Branches: []Branch{{}}}
	for i := range uint32(MaxBranches - 1) {
		deep.Branches = append(deep.Branches, Branch{Parent: i, Accepted: true})
	}
	got, err = Decode(must(Encode(deep)))
	require.NoError(t, err)
	require.Len(t, got.Branches, MaxBranches)
}
