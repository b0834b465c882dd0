//go:build unix

package model

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps n bytes of f from byte at for reading, until unmap.
func mapFile(f *os.File, at int64, n int) (data []byte, unmap func(), err error) {
	lead := int(at % int64(os.Getpagesize()))
	m, err := unix.Mmap(int(f.Fd()), at-int64(lead), lead+n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	// Advice: without it reading is slower, not wrong.
	_ = unix.Madvise(m, unix.MADV_WILLNEED)
	return m[lead:], func() { _ = unix.Munmap(m) }, nil
}
