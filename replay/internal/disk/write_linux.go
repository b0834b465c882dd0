package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// maxParts is how many buffers the kernel takes at once (IOV_MAX).
const maxParts = 1024

// WriteAt writes buffers behind each other from off on, without copying them
// together first.
func WriteAt(f *os.File, parts [][]byte, off int64) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = rc.Write(func(fd uintptr) bool {
		werr = writeParts(int(fd), slices.Clone(parts), off)
		return true
	})
	if err == nil && werr != nil {
		err = fmt.Errorf("write %s: %w", f.Name(), werr)
	}
	return err
}

// writeParts cuts off what is written as it goes.
func writeParts(fd int, parts [][]byte, off int64) error {
	for {
		for len(parts) > 0 && len(parts[0]) == 0 {
			parts = parts[1:]
		}
		if len(parts) == 0 {
			return nil
		}
		n, err := unix.Pwritev(fd, parts[:min(len(parts), maxParts)], off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return io.ErrShortWrite
		}
		off += int64(n)
		for n > 0 {
			k := min(n, len(parts[0]))
			parts[0], n = parts[0][k:], n-k
			if len(parts[0]) == 0 {
				parts = parts[1:]
			}
		}
	}
}
