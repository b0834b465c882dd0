package cluster

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives raft's messages to slog, one level lower: what raft calls
// info is of interest only to those who debug it. Raft repeats itself several
// times a second while a peer is down; here each message comes once a while.
func raftLogger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	l.RegisterSink(&slogSink{log: log, last: make(map[string]quiet)})
	return l
}

const repeatAfter = 30 * time.Second

// quiet is when a message was last let through, and how often it came since.
type quiet struct {
	at      time.Time
	skipped int
}

type slogSink struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]quiet // raft's messages are constants: a few dozen
}

// Accept implements hclog.SinkAdapter.
func (s *slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	lv := slog.LevelDebug
	switch level {
	case hclog.Warn:
		lv = slog.LevelInfo
	case hclog.Error:
		lv = slog.LevelWarn
	}
	if level < hclog.Info || !s.log.Enabled(context.Background(), lv) {
		return
	}
	now := time.Now()
	s.mu.Lock()
	q := s.last[msg]
	if now.Sub(q.at) < repeatAfter {
		q.skipped++
		s.last[msg] = q
		s.mu.Unlock()
		return
	}
	s.last[msg] = quiet{at: now}
	s.mu.Unlock()
	if q.skipped > 0 {
		args = append(args, "repeated", q.skipped)
	}
	s.log.Log(context.Background(), lv, "raft: "+msg, args...)
}
