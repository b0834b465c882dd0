package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// raw is one row: its columns as JSON values, and where it stands.
type raw struct {
	where   string // file:line, or file:row of a Parquet file
	columns map[string]json.RawMessage
}

// maxLine bounds one row of a JSONL file.
const maxLine = 64 << 20

// Kinds of files, by their suffix; .jsonl and .ndjson may be compressed.
const fileKinds = ".jsonl, .ndjson, the same with .gz or .zst, or .parquet"

// readFile yields the rows of a file in order. A row that cannot be read comes
// with an error and its place; an error without a place ends the file.
func readFile(path string) iter.Seq2[raw, error] {
	name := strings.ToLower(filepath.Base(path))
	if strings.HasSuffix(name, ".parquet") {
		return readParquet(path)
	}
	plain := strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	if !strings.HasSuffix(plain, ".jsonl") && !strings.HasSuffix(plain, ".ndjson") {
		return broken(fmt.Errorf("%s: the name says no known kind of file: use %s", path, fileKinds))
	}
	return func(yield func(raw, error) bool) {
		r, closeFile, err := openText(path)
		if err != nil {
			yield(raw{}, err)
			return
		}
		defer closeFile()
		readLines(path, r, yield)
	}
}

// broken is a file that cannot be read at all.
func broken(err error) iter.Seq2[raw, error] {
	return func(yield func(raw, error) bool) { yield(raw{}, err) }
}

// openText opens a file, decompressing by its suffix.
func openText(path string) (io.Reader, func(), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
		}
		return z, func() { _ = z.Close(); _ = f.Close() }, nil
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
		}
		return z, func() { z.Close(); _ = f.Close() }, nil
	}
	return f, func() { _ = f.Close() }, nil
}

// readLines yields the JSON objects of a text, one a line; blank lines are
// passed over.
func readLines(path string, r io.Reader, yield func(raw, error) bool) {
	in := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		where := fmt.Sprintf("%s:%d", path, n)
		line, err := readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			yield(raw{}, fmt.Errorf("%s: %w", where, err))
			return
		}
		if text := bytes.TrimSpace(line); len(text) > 0 {
			row := raw{where: where}
			var bad error
			if e := json.Unmarshal(text, &row.columns); e != nil {
				bad = fmt.Errorf("not a JSON object: %w", e)
			} else if row.columns == nil {
				bad = errors.New("not a JSON object but null")
			}
			if !yield(row, bad) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// readLine reads to the next newline; the last line comes with io.EOF.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("a line of more than %d MiB", maxLine>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
