package eventlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the wire version this package reads and writes.
const Version = 1

// Errors that readers tell apart.
var (
	// ErrNotLog: the bytes do not begin as an EventLog does.
	ErrNotLog = errors.New("eventlog: not an EventLog")
	// ErrCorrupt: the bytes begin as an EventLog but do not hold one: truncated,
	// changed, or written by something that breaks the format.
	ErrCorrupt = errors.New("eventlog: corrupt")
	// ErrTooLarge: a limit of this package is exceeded.
	ErrTooLarge = errors.New("eventlog: too large")
)

// VersionError is returned for a log of a version this package cannot read.
type VersionError struct {
	Version uint16 // the log's
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("eventlog: log has wire version %d and this build reads version %d: read it with a newer skein", e.Version, Version)
}

// The frame: magic, version, flags, body length, CRC-32C of the body, body.
const (
	magic      = "SKEL"
	headerSize = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame puts the header in front of a body.
func frame(body []byte) []byte {
	out := make([]byte, headerSize, headerSize+len(body))
	copy(out, magic)
	binary.LittleEndian.PutUint16(out[4:], Version)
	binary.LittleEndian.PutUint16(out[6:], 0) // flags
	binary.LittleEndian.PutUint32(out[8:], uint32(len(body)))
	binary.LittleEndian.PutUint32(out[12:], crc32.Checksum(body, castagnoli))
	return append(out, body...)
}

// unframe checks the header and returns the body. The version is checked before
// anything a later version may lay out differently.
func unframe(data []byte) ([]byte, error) {
	if len(data) < 6 || string(data[:4]) != magic {
		return nil, fmt.Errorf("%w: want %q and a version first, got %.8q (%d bytes)", ErrNotLog, magic, data[:min(8, len(data))], len(data))
	}
	if v := binary.LittleEndian.Uint16(data[4:]); v != Version {
		return nil, &VersionError{Version: v}
	}
	if len(data) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes, the header alone has %d", ErrCorrupt, len(data), headerSize)
	}
	if f := binary.LittleEndian.Uint16(data[6:]); f != 0 {
		return nil, fmt.Errorf("%w: flags %#04x, version %d knows none", ErrCorrupt, f, Version)
	}
	if len(data) > headerSize+MaxEncodedBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(data), headerSize+MaxEncodedBytes)
	}
	body := data[headerSize:]
	if n := binary.LittleEndian.Uint32(data[8:]); int64(n) != int64(len(body)) {
		return nil, fmt.Errorf("%w: header says %d bytes follow, there are %d", ErrCorrupt, n, len(body))
	}
	if want, got := binary.LittleEndian.Uint32(data[12:]), crc32.Checksum(body, castagnoli); want != got {
		return nil, fmt.Errorf("%w: checksum %08x, header says %08x", ErrCorrupt, got, want)
	}
	return body, nil
}
