package eventlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// importLines applies parse to every non-empty line and reports every bad one.
func importLines(data []byte, parse func(line []byte) (*Log, error)) ([]*Log, error) {
	var logs []*Log
	var errs []error
	for n := 1; len(data) > 0; n++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		l, err := parse(line)
		if err != nil {
			if len(errs) < maxProblems {
				errs = append(errs, fmt.Errorf("line %d: %w", n, err))
			}
			continue
		}
		logs = append(logs, l)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return logs, nil
}

// appendLine writes v as one line of canonical JSON. Object keys come sorted
// and nothing is escaped that need not be.
func appendLine(dst []byte, v any) ([]byte, error) {
	dst, err := appendCanonical(dst, v, 0)
	if err != nil {
		return nil, err
	}
	return append(dst, '\n'), nil
}

// decodeLine reads one JSON value into v, numbers as json.Number.
func decodeLine(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: data after the JSON value at byte %d", ErrInvalid, d.InputOffset())
	}
	return nil
}
