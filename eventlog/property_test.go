package eventlog

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The four properties the paper claims of its event log (SPEC 1.5), and the
// ones our encoding adds.

// (1) Order preservation: each projection is a subsequence map of the log.
func TestPropertyOrder(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		ordered := func(what string, seqs []uint32) {
			if !slices.IsSorted(seqs) {
				t.Fatalf("%s out of log order: %v", what, seqs)
			}
		}
		var audit []uint32
		for _, r := range l.AuditRecords() {
			audit = append(audit, r.Seq)
		}
		ordered("audit records", audit)

		history := l.History()
		for i, e := range history[min(1, len(history)):] {
			if e.Parent != history[i].Seq {
				t.Fatalf("history jumps from %d to %d", history[i].Seq, e.Seq)
			}
		}
		// Every output of the eval dict is that of a result, in order.
		var outs []any
		for _, e := range history {
			if e.Kind == ToolResult {
				outs = append(outs, e.Payload["output"])
			}
		}
		if d := cmp.Diff(outs, l.EvalDict().ToolOutputs, equalLogs); d != "" {
			t.Fatal(d)
		}
		if l.Tier != Full {
			return
		}
		rows := must(l.DatasetRows("sft", RowOptions{Memory: true, Choice: AllRows}))
		for _, r := range rows {
			ordered("row", r.Events)
		}
		if n := len(l.Rejected()); len(rows) != n+1 {
			t.Fatalf("%d rows for %d rejected alternatives and the accepted one", len(rows), n)
		}
		var masked []uint32
		for _, m := range must(l.MaskedTokens()) {
			masked = append(masked, m.Seq)
		}
		ordered("masked tokens", masked)
	})
}

// (2) Tier monotonicity: what a light log can do, a full one can, with the same
// result; the token-level projections refuse a light log.
func TestPropertyTiers(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		light := *l
		light.Tier, light.Branches = Light, nil
		light.Events = slices.Clone(l.Events)
		for i := range light.Events {
			light.Events[i].Span, light.Events[i].Branch = nil, 0
		}
		if err := light.Validate(); err != nil {
			t.Fatal(err)
		}
		if _, err := light.MaskedTokens(); !errors.Is(err, ErrLightTier) {
			t.Fatalf("masked tokens of a light log: %v", err)
		}
		if _, err := light.DatasetRows("sft", RowOptions{}); !errors.Is(err, ErrLightTier) {
			t.Fatalf("dataset rows of a light log: %v", err)
		}
		if d := cmp.Diff(l.EvalDict(), light.EvalDict()); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(l.AuditRecords(), light.AuditRecords()); d != "" {
			t.Fatal(d)
		}
		full := light
		full.Tier = Full
		if _, err := full.DatasetRows("sft", RowOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

// (3) Weight partition: every message is of the agent (w > 0) or of the
// environment (w = 0), and masked == (w == 0).
func TestPropertyWeights(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		if l.Tier != Full {
			return
		}
		for _, r := range must(l.DatasetRows("sft", RowOptions{Memory: true, Choice: AllRows})) {
			if len(r.Messages) != len(r.SegmentWeights) || len(r.Messages) != len(r.LossMask) || len(r.Messages) != len(r.Events) {
				t.Fatalf("lists differ in length: %+v", r)
			}
			for i, m := range r.Messages {
				w := r.SegmentWeights[i]
				if (m.Role == "assistant") != (w > 0) || w < 0 || r.LossMask[i] != (w == 0) {
					t.Fatalf("message %d: role %s weight %v masked %v", i, m.Role, w, r.LossMask[i])
				}
			}
		}
	})
}

// (4) Read-only: projecting changes nothing, and writing into a projection does
// not reach the log.
func TestPropertyReadOnly(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		before, deep := l.Digest(), fmt.Sprintf("%#v", *l)
		d := l.EvalDict()
		for _, c := range append(d.ToolCalls, d.ToolOutputs...) {
			scribble(c)
		}
		for _, r := range l.AuditRecords() {
			scribble(r.StateSnapshot)
		}
		tr := l.Trajectory()
		for _, s := range tr.Steps {
			scribble(s.Action)
			scribble(s.Observation)
		}
		_ = must(ExportMessages(l))
		if l.Tier == Full {
			for _, r := range must(l.DatasetRows("sft", RowOptions{Choice: AllRows})) {
				clear(r.Messages)
			}
			spans := must(l.MaskedTokens())
			clear(spans)
			if rows, err := l.TrainRows(0); err == nil {
				for _, r := range rows {
					clear(r.Mask)
				}
			}
		}
		l.PolicyVersions()
		if l.Digest() != before || fmt.Sprintf("%#v", *l) != deep {
			t.Fatal("a projection changed its log")
		}
	})
}

// scribble overwrites whatever a projection handed out.
func scribble(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			scribble(x)
			v[k] = "scribbled"
		}
	case []any:
		for i, x := range v {
			scribble(x)
			v[i] = "scribbled"
		}
	}
}

// Decode is the inverse of Encode, and the digest does not notice.
func TestPropertyRoundTrip(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		data := must(Encode(l))
		got, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(l, got, equalLogs); d != "" {
			t.Fatal(d)
		}
		if l.Digest() != got.Digest() {
			t.Fatalf("digest changed from %s to %s", l.Digest(), got.Digest())
		}
	})
}

// One changed byte of a file is never read as another log.
func TestPropertyDamage(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		data := must(Encode(l))
		i := rapid.IntRange(0, len(data)-1).Draw(t, "byte")
		data[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if got, err := Decode(data); err == nil {
			t.Fatalf("byte %d damaged and read as log %s", i, got.ID)
		}
		cut := rapid.IntRange(0, len(data)-1).Draw(t, "cut")
		if _, err := Decode(data[:cut]); err == nil {
			t.Fatalf("cut to %d of %d bytes and read", cut, len(data))
		}
	})
}

// A token of the accepted branches is trained exactly once if a policy sampled
// it, else never.
func TestPropertyTrainOnce(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		rows, _ := l.TrainRows(0)
		trained := map[[2]int]int{}
		for _, r := range rows {
			if !l.Branches[r.Branch].Accepted || len(r.Mask) != len(l.Branches[r.Branch].IDs) {
				t.Fatalf("row of branch %d: accepted %v, mask %d", r.Branch, l.Branches[r.Branch].Accepted, len(r.Mask))
			}
			n := 0
			for p, in := range r.Mask {
				if in {
					trained[l.owner(r.Branch, p)]++
					n++
				}
			}
			if n != r.Trained {
				t.Fatalf("trained %d, mask has %d", r.Trained, n)
			}
		}
		want := map[[2]int]int{}
		for i := range l.Branches {
			if !l.Branches[i].Accepted {
				continue
			}
			for p, in := range l.Branches[i].PolicyMask(0) {
				if in {
					want[l.owner(i, p)] = 1
				}
			}
		}
		if d := cmp.Diff(want, trained); d != "" {
			t.Fatal(d)
		}
	})
}

// owner names a token by the branch it was first written in.
func (l *Log) owner(branch, pos int) [2]int {
	for pos < int(l.Branches[branch].Fork) {
		branch = int(l.Branches[branch].Parent)
	}
	return [2]int{branch, pos}
}
