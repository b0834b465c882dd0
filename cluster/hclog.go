package cluster

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives raft's messages to slog, one level lower: what raft calls
// info is of interest only to those who debug it.
func raftLogger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	l.RegisterSink(&slogSink{log})
	return l
}

type slogSink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s *slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level < hclog.Info {
		return
	}
	lv := slog.LevelDebug
	switch level {
	case hclog.Warn:
		lv = slog.LevelInfo
	case hclog.Error:
		lv = slog.LevelWarn
	}
	s.log.Log(context.Background(), lv, "raft: "+msg, args...)
}
