package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// receiptFile lists what a pull put into a directory. It is written last, so a
// directory that has one was complete.
const receiptFile = ".skein-files.json"

type receipt struct {
	Ref    string            `json:"ref"`
	Commit string            `json:"commit,omitempty"` // hf: what the revision meant
	Wheel  string            `json:"wheel,omitempty"`  // pkg: SHA-256 of the wheel
	Files  map[string]string `json:"files"`            // path -> digest
}

func (r receipt) write(dest string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	f, err := os.CreateTemp(dest, receiptFile+"-*")
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer os.Remove(f.Name()) // gone already when published
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	return publish(f.Name(), filepath.Join(dest, receiptFile))
}

// readReceipt gives an empty one when there is none, or a damaged one.
func readReceipt(dest string) (receipt, error) {
	var r receipt
	data, err := os.ReadFile(filepath.Join(dest, receiptFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("hub: %w", err)
	}
	if json.Unmarshal(data, &r) != nil {
		return receipt{}, nil //nolint:nilerr // a damaged receipt is none: the files are fetched again
	}
	return r, nil
}

// Cached gives the path that Pull returned for ref earlier, without the
// network: ok is false when it was not pulled into dest (the cache when empty)
// or files are gone. It does not read the files; loading a model names their
// damage.
func Cached(ref, dest string) (path string, ok bool, err error) {
	r, err := ParseRef(ref)
	if err != nil {
		return "", false, err
	}
	if dest == "" {
		home, err := Home()
		if err != nil {
			return "", false, err
		}
		dest = filepath.Join(home, r.cachePath())
	}
	rec, err := readReceipt(dest)
	if err != nil || rec.Ref != r.String() || len(rec.Files) == 0 {
		return "", false, err
	}
	for name := range rec.Files {
		if _, err := os.Stat(filepath.Join(dest, name)); err != nil {
			return "", false, nil //nolint:nilerr // a file is gone: not cached
		}
	}
	if r.Kind == "pkg" {
		dest = filepath.Join(dest, pinned[r.Name+"=="+r.Revision].open)
	}
	return filepath.Join(dest, r.File), true, nil
}
