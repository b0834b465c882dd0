package project

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var errInUse = errors.New("in use by another process")

// lockDir makes a folder this process's alone until the file is closed or the
// process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("project: folder %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("project: folder %s is %w: stop it, or use another --dir", dir, errInUse)
		}
		return nil, fmt.Errorf("project: locking folder %s: %w", dir, err)
	}
	return f, nil
}
