// Package disk has the few file-system facts that segments and blobs share:
// free space with its watermark, and making a directory entry durable.
package disk

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/skein-rl/skein/internal/durable"
)

// ErrFull: writing would cross the free-space watermark, or the file system
// said that it is full. Nothing was acknowledged; retry when space is back.
var ErrFull = errors.New("disk full")

// FreeFunc reports the bytes an unprivileged writer may still use in dir's
// file system.
type FreeFunc func(dir string) (uint64, error)

// Free asks the file system.
func Free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Check returns ErrFull when writing n bytes to dir would leave less than min
// bytes free.
func Check(dir string, free FreeFunc, min uint64, n int) error {
	have, err := free(dir)
	if err != nil {
		return err
	}
	if have < min+uint64(n) {
		return fmt.Errorf("%w: %d bytes free in %s, %d wanted and %d kept in reserve (free space there, or lower the reserve)",
			ErrFull, have, dir, n, min)
	}
	return nil
}

// Full turns the file system's own "no space" into ErrFull and leaves other
// errors alone.
func Full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// SyncDir makes creations, renames and removals in dir durable.
func SyncDir(dir string) error { return durable.SyncDir(dir) }
