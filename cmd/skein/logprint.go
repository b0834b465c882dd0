package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// printLog writes an EventLog for a reader.
func printLog(w io.Writer, l *eventlog.Log, tokens bool) {
	m := l.Meta
	fmt.Fprintf(w, "%s  %s tier  %s\n", l.ID, l.Tier, l.Digest())
	fmt.Fprintf(w, "  run %s, group %s, member %d of %d, task %s/%s, attempt %d, worker %s\n", m.Run, m.Group, m.Member, m.GroupSize, m.Source, m.Task, m.Attempt, m.Worker)
	fmt.Fprintf(w, "  %s%s\n", m.Status, prefixed(": ", m.Cause))
	for i := range l.Events {
		e := &l.Events[i]
		payload, err := json.Marshal(e.Payload)
		if err != nil {
			payload = []byte(err.Error())
		}
		span := ""
		if e.Span != nil {
			span = fmt.Sprintf(" [%d,%d)", e.Span.Start, e.Span.End)
			if e.Branch > 0 {
				span += fmt.Sprintf(" of branch %d", e.Branch)
			}
		}
		fmt.Fprintf(w, "  %3d<-%-3d %-13s %-12s%s %s%s\n", e.Seq, e.Parent, e.Kind, e.Author, span, payload, prefixed(" call ", e.CallID))
	}
	for i := range l.Branches {
		b := &l.Branches[i]
		state := "rejected"
		if b.Accepted {
			state = "accepted"
		}
		fmt.Fprintf(w, "  branch %d (%s): %d tokens", i, state, len(b.IDs))
		start := int32(0)
		for _, r := range b.Runs {
			fmt.Fprintf(w, " %s", r.Writer)
			if r.Writer == eventlog.Policy {
				fmt.Fprintf(w, "(v%d)", r.Version)
			}
			fmt.Fprintf(w, "x%d", r.End-start)
			start = r.End
		}
		fmt.Fprintln(w)
		if tokens {
			printTokens(w, b)
		}
	}
}

func printTokens(w io.Writer, b *eventlog.Branch) {
	run := 0
	for t, id := range b.IDs {
		for int32(t) >= b.Runs[run].End {
			run++
		}
		r := b.Runs[run]
		if r.Writer == eventlog.Policy {
			fmt.Fprintf(w, "    %5d  %6d  %-11s v%-4d %9.4f\n", t, id, r.Writer, r.Version, b.Logprobs[t])
		} else {
			fmt.Fprintf(w, "    %5d  %6d  %s\n", t, id, r.Writer)
		}
	}
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

var exportFormats = []string{"eventlog", "messages", "trajectory", "sft"}

func checkFormat(name string) error {
	if exporters[name] != nil {
		return nil
	}
	return fmt.Errorf("--format %q: use one of %s", name, strings.Join(exportFormats, ", "))
}

// exporters encode a log as one line.
var exporters = map[string]func(*eventlog.Log) ([]byte, error){
	"eventlog": func(l *eventlog.Log) ([]byte, error) { return line(l) },
	"messages": func(l *eventlog.Log) ([]byte, error) { return eventlog.ExportMessages(l) },
	"trajectory": func(l *eventlog.Log) ([]byte, error) {
		return eventlog.ExportTrajectories([]eventlog.Trajectory{l.Trajectory()}, true)
	},
	"sft": func(l *eventlog.Log) ([]byte, error) {
		rows, err := l.DatasetRows("sft", eventlog.RowOptions{})
		if err != nil {
			return nil, err
		}
		return line(rows[0])
	},
}

// exportLogs writes every log of a table, oldest first, and says how many.
func exportLogs(ctx context.Context, st replay.Store, run, table, format string, w io.Writer) (int, error) {
	write := exporters[format]
	n, cursor := 0, ""
	for {
		items, next, err := st.Scan(ctx, run, table, cursor, 200)
		if err != nil {
			return n, err
		}
		ids := make([]string, len(items))
		for i, it := range items {
			ids[i] = it.LogID
		}
		if len(ids) > 0 {
			recs, err := st.Fetch(ctx, ids)
			if err != nil {
				return n, err
			}
			for _, r := range recs {
				l, err := eventlog.Decode(r.Bytes)
				if err != nil {
					return n, fmt.Errorf("log %s: %w", r.Item.LogID, err)
				}
				b, err := write(l)
				if err != nil {
					return n, fmt.Errorf("log %s: %w", r.Item.LogID, err)
				}
				if _, err := w.Write(b); err != nil {
					return n, err
				}
				n++
			}
		}
		if next == "" {
			return n, nil
		}
		cursor = next
	}
}

func line(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}
