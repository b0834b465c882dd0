//go:build !linux

package disk

import (
	"os"
	"slices"
)

// WriteAt writes buffers behind each other from off on.
func WriteAt(f *os.File, parts [][]byte, off int64) error {
	_, err := f.WriteAt(slices.Concat(parts...), off)
	return err
}
