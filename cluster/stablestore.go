package cluster

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/hashicorp/raft"
)

// patientStable is raft's store of its term and vote on a disk that may fail.
// A node that can't remember whom it voted for must not go on, and raft panics
// when it can't save its term, which would end every role of the process. Here
// the write is tried again until it works: meanwhile raft's main loop stands
// still, so the node neither votes nor leads, as on a stalled disk. When the
// node closes first, that loop ends without the write.
type patientStable struct {
	raft.StableStore
	stop context.Context //nolint:containedctx // the node's life
	log  *slog.Logger
}

// Set implements raft.StableStore.
func (s *patientStable) Set(key, val []byte) error {
	return s.insist(key, func() error { return s.StableStore.Set(key, val) })
}

// SetUint64 implements raft.StableStore.
func (s *patientStable) SetUint64(key []byte, val uint64) error {
	return s.insist(key, func() error { return s.StableStore.SetUint64(key, val) })
}

func (s *patientStable) insist(key []byte, write func() error) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := write()
		if err == nil {
			return nil
		}
		s.log.Error("raft's vote or term not saved: this node stands still until its disk works again", "key", string(key), "err", err)
		select {
		case <-s.stop.Done():
			runtime.Goexit()
		case <-time.After(pause):
		}
	}
}
