package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/skein-rl/skein/internal/durable"
)

// Names inside a node's directory.
const (
	fileCACert   = "ca.crt"
	fileCAKey    = "ca.key" // replay nodes only
	fileNodeCert = "node.crt"
	fileNodeKey  = "node.key"
	fileNextKey  = "node.key.next" // of a certificate being replaced
	fileToken    = "token"         // replay nodes only
	fileAddr     = "addr"
	fileBook     = "nodes.json"
	fileFounder  = "founder" // made the cluster: may start a raft group of its own
	fileMember   = "member"  // was in the raft group: must not start without its log
	fileLock     = "lock"
	dirRaft      = "raft"
	dirSnapshots = "snapshots"
	dirStore     = "store"
)

// writeFile replaces path so that a reader, or a crash, sees the old content
// or the new, never a part.
func writeFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	tmp := f.Name()
	defer func() { _ = os.Remove(tmp) }() // gone already after the rename
	if err := errors.Join(f.Chmod(mode), writeAll(f, data), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cluster: write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func writeAll(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

// readFile returns nil without error when the file is absent.
func readFile(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// lockDir makes dir this process's alone until the file is closed.
func lockDir(dir string) (*os.File, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: node directory %s: %w", dir, err)
	}
	path := filepath.Join(dir, fileLock)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: node directory %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cluster: node directory %s is in use by another process: "+
				"stop it, or give this node its own directory", dir)
		}
		return nil, fmt.Errorf("cluster: lock %s: %w", path, err)
	}
	return f, nil
}
