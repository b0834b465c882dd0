//go:build !unix

package model

import (
	"errors"
	"os"
)

// mapFile: files are read, not mapped, on this system.
func mapFile(*os.File, int64, int) ([]byte, func(), error) {
	return nil, nil, errors.ErrUnsupported
}
