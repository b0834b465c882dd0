package project

import (
	"os"
	"runtime/debug"
)

const (
	replayMemory = 256 << 20 // bytes of heap from which on the collector works harder
	replayGC     = 200       // percent of growth between collections below that
)

// TuneReplay sets the garbage collector for a process that is a replay node and
// nothing else: its live heap is small and bounded, whatever it stores, while
// appends make garbage quickly, so it collects half as often and within a bound.
// GOGC and GOMEMLIMIT, where set, win.
func TuneReplay() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(replayGC)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(replayMemory)
	}
}
