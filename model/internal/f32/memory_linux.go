package f32

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages: a product walks megabytes in order, and their
// addresses are then looked up 512 times less often. It is advice.
func adviseHuge(m []byte) { _ = unix.Madvise(m, unix.MADV_HUGEPAGE) }
