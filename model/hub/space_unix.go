//go:build linux || darwin

package hub

import "golang.org/x/sys/unix"

// freeBytes is what this user may still write to the disk of dir.
func freeBytes(dir string) (n int64, ok bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Bsize <= 0 {
		return 0, false
	}
	return int64(min(st.Bavail, 1<<62/uint64(st.Bsize))) * int64(st.Bsize), true
}
