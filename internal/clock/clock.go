// Package clock is where a replay node reads the time.
//
// [Wall] is the machine's clock as its owner set it; [Group] is the time of a
// replicated group, which no single machine's clock can make jump.
package clock

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OffsetEnv names a file that holds how far, in nanoseconds, this process's
// wall clock is off: for fault injection (bench/chaos). Unset or unreadable
// means 0. The file is read again every 20 ms at most.
const OffsetEnv = "SKEIN_CHAOS_CLOCK_FILE"

// Reread is how long an offset that was read is used.
const Reread = 20 * time.Millisecond

var hook = struct {
	file string
	mu   sync.Mutex
	at   time.Time
	off  time.Duration
}{file: os.Getenv(OffsetEnv)}

// Wall is the wall clock. It may jump in either direction at any time; two
// readings of it must not be compared to measure a duration.
func Wall() time.Time { return time.Now().Round(0).Add(offset()) }

func offset() time.Duration {
	hook.mu.Lock()
	defer hook.mu.Unlock()
	if hook.file == "" {
		return 0
	}
	if now := time.Now(); now.Sub(hook.at) >= Reread {
		hook.at = now
		b, err := os.ReadFile(hook.file)
		n, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err == nil && perr == nil {
			hook.off = time.Duration(n)
		}
	}
	return hook.off
}

// SetOffsetFile is OffsetEnv for tests; the returned function undoes it.
func SetOffsetFile(file string) (undo func()) {
	set := func(f string) {
		hook.mu.Lock()
		defer hook.mu.Unlock()
		hook.file, hook.at, hook.off = f, time.Time{}, 0
	}
	hook.mu.Lock()
	old := hook.file
	hook.mu.Unlock()
	set(file)
	return func() { set(old) }
}
