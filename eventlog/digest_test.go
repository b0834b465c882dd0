package eventlog

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"
)

// The digest of one log, serialised here by hand from docs/format/eventlog.md.
func TestDigestLayout(t *testing.T) {
	l := &Log{
		ID: "id", Tier: Full, Outcome: 1,
		Meta: Meta{Run: "run", Group: "grp", Member: 1, GroupSize: 2, Table: "tab", Source: "src", Task: "tsk", Attempt: 3, Worker: "wrk",
			Status: Truncated, Cause: "engine: length", Created: time.Unix(5, 6)},
		Events: []Event{
			{Seq: 1, Kind: Text, Author: "agent", Payload: map[string]any{"text": "hé", "n": 1.50}, Span: &Span{1, 2}, End: time.Unix(0, 9)},
			{Seq: 2, Parent: 1, Kind: Reward, Scope: TurnScope, Author: "env", CallID: "c", Payload: map[string]any{"value": 1}, Partial: true},
		},
		Branches: []Branch{{IDs: []int32{7, 8}, Logprobs: []float32{math.Float32frombits(0xffc12345), -0.5},
			Runs: []Run{{1, Prompt, 0}, {2, Policy, 1 << 40}}, Accepted: true}},
	}
	var b []byte
	u8 := func(vs ...byte) { b = append(b, vs...) }
	u32 := func(vs ...uint32) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	u64 := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	str := func(s string) { u32(uint32(len(s))); b = append(b, s...) }
	b = append(b, "skein.eventlog.v1\n"...)
	str("id")
	u8(1)
	str("run")
	str("grp")
	u32(1, 2)
	str("tab")
	str("src")
	str("tsk")
	u32(3)
	str("wrk")
	u8(2)
	str("engine: length")
	u8(1)
	u64(5_000_000_006)
	u32(1)

	u32(2)
	u8(1)
	u32(0)
	str(`{"n":1.5,"text":"hé"}`)
	u8(1)
	u32(0, 1, 2)
	u8(0)
	str("agent")
	str("")
	u8(0)
	u8(1)
	u64(9)
	u8(0)

	u8(7)
	u32(1)
	str(`{"value":1}`)
	u8(0)
	u8(2)
	str("env")
	str("c")
	u8(0, 0, 1)

	u32(1)
	u32(0, 0)
	u8(1)
	u32(2, 7, 8)
	u32(2, 0x7fc00000, 0xbf000000)
	u32(2, 1)
	u8(1)
	u64(0)
	u32(2)
	u8(2)
	u64(1 << 40)

	sum := blake3.Sum256(b)
	require.NoError(t, l.Validate())
	require.Equal(t, "blake3:"+hex.EncodeToString(sum[:]), l.Digest())
}

// Whatever is changed in a log changes its digest.
func TestDigestCoversEverything(t *testing.T) {
	seen := map[string]string{forkLog(t).Digest(): "unchanged"}
	for name, change := range map[string]func(l *Log){
		"id": func(l *Log) { l.ID += "x" }, "tier": func(l *Log) { l.Tier = Light }, "outcome": func(l *Log) { l.Outcome = 0 },
		"run": func(l *Log) { l.Meta.Run += "x" }, "group": func(l *Log) { l.Meta.Group += "x" }, "member": func(l *Log) { l.Meta.Member++ },
		"size": func(l *Log) { l.Meta.GroupSize++ }, "table": func(l *Log) { l.Meta.Table += "x" }, "source": func(l *Log) { l.Meta.Source += "x" },
		"task": func(l *Log) { l.Meta.Task += "x" }, "attempt": func(l *Log) { l.Meta.Attempt++ }, "worker": func(l *Log) { l.Meta.Worker += "x" },
		"status": func(l *Log) { l.Meta.Status++ }, "cause": func(l *Log) { l.Meta.Cause += "x" },
		"created": func(l *Log) { l.Meta.Created = l.Meta.Created.Add(1) },
		"kind":    func(l *Log) { l.Events[0].Kind++ }, "parent": func(l *Log) { l.Events[2].Parent-- },
		"payload": func(l *Log) { l.Events[0].Payload["text"] = "y" }, "branch": func(l *Log) { l.Events[0].Branch++ },
		"no span": func(l *Log) { l.Events[0].Span = nil }, "span start": func(l *Log) { l.Events[0].Span.Start++ },
		"span end": func(l *Log) { l.Events[0].Span.End-- }, "scope": func(l *Log) { l.Events[5].Scope-- },
		"author": func(l *Log) { l.Events[0].Author += "x" }, "call": func(l *Log) { l.Events[2].CallID += "x" },
		"start": func(l *Log) { l.Events[0].Start = t0 }, "end": func(l *Log) { l.Events[0].End = t0 },
		"partial": func(l *Log) { l.Events[0].Partial = true }, "fewer events": func(l *Log) { l.Events = l.Events[:6] },
		"token": func(l *Log) { l.Branches[0].IDs[0]++ }, "logprob": func(l *Log) { l.Branches[0].Logprobs[4] -= 1e-6 },
		"run end": func(l *Log) { l.Branches[0].Runs[0].End++ }, "writer": func(l *Log) { l.Branches[0].Runs[0].Writer++ },
		"version": func(l *Log) { l.Branches[0].Runs[1].Version++ }, "accepted": func(l *Log) { l.Branches[1].Accepted = true },
		"fork": func(l *Log) { l.Branches[1].Fork-- }, "fork parent": func(l *Log) { l.Branches[1].Parent++ },
	} {
		l := forkLog(t)
		change(l)
		d := l.Digest()
		require.NotContains(t, seen, d, name)
		seen[d] = name
	}
	l := forkLog(t)
	l.Events[0].Payload["x"] = math.NaN()
	require.Empty(t, l.Digest())
}
