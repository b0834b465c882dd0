//go:build unix

package f32

import "golang.org/x/sys/unix"

// mapMemory returns n zeroed bytes that take room only once they are written.
func mapMemory(n int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		adviseHuge(m)
	}
	return m, err
}

func unmapMemory(m []byte) { _ = unix.Munmap(m) }
