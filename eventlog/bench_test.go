package eventlog

import (
	"strings"
	"testing"
)

// benchLog has ten turns over 4,000 tokens.
func benchLog(b *testing.B) *Log {
	w := NewBuilder(testMeta())
	ids := make([]int32, 200)
	lps := make([]float32, 200)
	for i := range ids {
		ids[i], lps[i] = int32(i*733%49152), -0.25
	}
	for turn := range 10 {
		s := must(w.AppendTokens(0, ids, lps, Policy, 5))
		must(w.Append(NewToolCall("c", "search", map[string]any{"query": "the quick brown fox", "limit": 10}).In(0, s)))
		s = must(w.AppendTokens(0, ids, nil, Environment, 0))
		must(w.Append(NewToolResult("c", strings.Repeat("result ", 120), "").In(0, s)))
		must(w.Append(NewTurnComplete(turn)))
	}
	must(w.Append(NewReward(EpisodeScope, 1)))
	return must(w.Finish(OK, ""))
}

func BenchmarkEncode(b *testing.B) {
	l := benchLog(b)
	b.SetBytes(int64(len(must(Encode(l)))))
	for b.Loop() {
		must(Encode(l))
	}
}

func BenchmarkDecode(b *testing.B) {
	data := must(Encode(benchLog(b)))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		must(Decode(data))
	}
}

func BenchmarkDigest(b *testing.B) {
	l := benchLog(b)
	for b.Loop() {
		l.Digest()
	}
}
