package eventlog

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
)

// What Decode accepts must be a valid log that survives another round trip.
func checkDecoded(t *testing.T, data []byte) {
	l, err := Decode(data)
	if err != nil {
		return
	}
	again, err := Encode(l)
	if err != nil {
		t.Fatalf("decoded and not encodable: %v", err)
	}
	l2, err := Decode(again)
	if err != nil {
		t.Fatalf("written and not readable: %v", err)
	}
	if l.Digest() != l2.Digest() {
		t.Fatalf("digest changed from %s to %s", l.Digest(), l2.Digest())
	}
	l.AuditRecords()
	l.EvalDict()
	l.Trajectory()
	l.Rejected()
	l.TrainRows(0)
	l.PolicyVersions()
	if l.Tier == Full {
		if _, err := l.DatasetRows("sft", RowOptions{Memory: true, Choice: AllRows}); err != nil {
			t.Fatal(err)
		}
	}
}

// seeds adds the recorded logs, whole or without their frame.
func seeds(f *testing.F, from int) {
	files, err := filepath.Glob("testdata/v1/*.log")
	if err != nil || len(files) == 0 {
		f.Fatalf("no recorded logs: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[from:])
	}
	body, err := proto.Marshal(wire(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame(body)[from:])
}

func FuzzDecode(f *testing.F) {
	seeds(f, 0)
	f.Add([]byte("SKEL\x02\x00"))
	f.Fuzz(checkDecoded)
}

// FuzzDecodeBody gives every body a right checksum, to get past it.
func FuzzDecodeBody(f *testing.F) {
	seeds(f, headerSize)
	f.Fuzz(func(t *testing.T, body []byte) { checkDecoded(t, frame(body)) })
}

func FuzzImportMessages(f *testing.F) {
	f.Add([]byte(chat))
	f.Add([]byte(`[{"role":"user","content":"hi"}]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		logs, err := ImportMessages(line)
		if err != nil {
			return
		}
		for _, l := range logs {
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ExportMessages(logs...); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzImportTrajectories(f *testing.F) {
	data, err := ExportTrajectories([]Trajectory{testTrajectory()}, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"task":"x","logprobs":[-1,-2],"metadata":{"completion_ids":[1,2],"tool_mask":[1,0]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		logs, err := ImportTrajectories(line)
		if err != nil {
			return
		}
		for _, l := range logs {
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
			if _, err := ExportTrajectories([]Trajectory{l.Trajectory()}, true); err != nil {
				t.Fatal(err)
			}
		}
	})
}
