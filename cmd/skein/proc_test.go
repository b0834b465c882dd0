package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lockedBuffer collects a process's output while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func stepLine(n int) string { return fmt.Sprintf("step %3d/", n) }

// childPID finds the running child of parent that skein node --id ID is.
func childPID(t *testing.T, parent int, id string) int {
	t.Helper()
	var found int
	require.Eventually(t, func() bool {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			stat, err := os.ReadFile(filepath.Join(d, "stat"))
			if err != nil {
				continue
			}
			// pid (comm) state ppid ...; comm may hold anything but ends with the last ')'.
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if len(fields) < 2 || fields[0] == "Z" || fields[1] != strconv.Itoa(parent) {
				continue
			}
			args, err := os.ReadFile(filepath.Join(d, "cmdline"))
			if err == nil && strings.Contains(string(args), "\x00--id\x00"+id+"\x00") {
				found, _ = strconv.Atoi(filepath.Base(d))
				return true
			}
		}
		return false
	}, timeToRestart, pollEvery, "no running process of %s", id)
	return found
}

// A killed child is started again after a short delay.
const (
	timeToRestart = 30 * time.Second
	pollEvery     = 20 * time.Millisecond
)
