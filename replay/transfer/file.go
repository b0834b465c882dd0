package transfer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go"
	"lukechampine.com/blake3"
)

// Formats of the files.
const (
	JSONL   = "jsonl"
	Parquet = "parquet"
)

// rowGroup is how many bytes of logs a row group of a Parquet file has, about.
const rowGroup = 16 << 20

// fileWriter writes rows to one file.
type fileWriter struct {
	f    *os.File
	buf  *bufio.Writer
	sum  hash.Hash
	json *json.Encoder
	pq   *parquet.GenericWriter[Row]
	rows int
	size int64 // of the logs
	open int64 // of the current row group
}

func newFileWriter(path, format string) (*fileWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	w := &fileWriter{f: f, sum: blake3.New(32, nil)}
	w.buf = bufio.NewWriterSize(io.MultiWriter(f, w.sum), 1<<20)
	if format == JSONL {
		w.json = json.NewEncoder(w.buf)
		w.json.SetEscapeHTML(false)
	} else {
		w.pq = parquet.NewGenericWriter[Row](w.buf, parquet.CreatedBy("skein", "", ""))
	}
	return w, nil
}

func (w *fileWriter) write(r Row) error {
	w.rows++
	w.size += int64(len(r.Data))
	if w.json != nil {
		return w.json.Encode(r)
	}
	if _, err := w.pq.Write([]Row{r}); err != nil {
		return err
	}
	if w.open += int64(len(r.Data)); w.open < rowGroup {
		return nil
	}
	w.open = 0
	return w.pq.Flush()
}

// close finishes the file durably and returns its digest.
func (w *fileWriter) close() (digest string, err error) {
	if w.pq != nil {
		err = w.pq.Close()
	}
	err = errors.Join(err, w.buf.Flush())
	if err == nil {
		err = w.f.Sync()
	}
	if err = errors.Join(err, w.f.Close()); err == nil {
		err = syncDir(filepath.Dir(w.f.Name()))
	}
	if err != nil {
		return "", fmt.Errorf("transfer: write %s: %w", w.f.Name(), err)
	}
	return fmt.Sprintf("blake3:%x", w.sum.Sum(nil)), nil
}

// abandon gives an unfinished file up.
func (w *fileWriter) abandon() error {
	return errors.Join(w.f.Close(), os.Remove(w.f.Name()))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// digestFile is the digest of a file's contents.
func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := blake3.New(32, nil)
	_, err = io.Copy(h, f)
	return fmt.Sprintf("blake3:%x", h.Sum(nil)), errors.Join(err, f.Close())
}

// maxLine bounds a JSON line: a log of 256 MiB in base64, and its item.
const maxLine = 400 << 20

// readFile calls fn with rows, some at a time.
func readFile(path, format string, fn func([]Row) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if format == JSONL {
		err = readLines(f, fn)
	} else {
		err = readParquet(f, fn)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("transfer: %s: %w", path, err)
	}
	return nil
}

func readLines(r io.Reader, fn func([]Row) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<16), maxLine)
	for line := 1; s.Scan(); line++ {
		var row Row
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if err := fn([]Row{row}); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	return s.Err()
}

func readParquet(f *os.File, fn func([]Row) error) error {
	r := parquet.NewGenericReader[Row](f)
	for {
		rows := make([]Row, 16) // fresh: the logs are kept
		n, err := r.Read(rows)
		if n > 0 {
			if ferr := fn(rows[:n]); ferr != nil {
				return errors.Join(ferr, r.Close())
			}
		}
		if errors.Is(err, io.EOF) {
			return r.Close()
		}
		if err != nil {
			return errors.Join(err, r.Close())
		}
	}
}
