package model

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFileAtomic replaces path with data: a reader sees the old file or the
// whole new one, also after a power cut.
func writeFileAtomic(path string, data []byte) error {
	return writeAtomic(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// writeAtomic replaces path with what write writes, as writeFileAtomic does.
func writeAtomic(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = write(w); err != nil {
		return err
	}
	if err = w.Flush(); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// openSafeTensors reads the header of an open file, which must stay open.
func openSafeTensors(f fs.File) (*SafeTensors, error) {
	r, size, err := readerAt(f)
	if err != nil {
		return nil, err
	}
	return ReadSafeTensors(r, size)
}

func readerAt(f fs.File) (io.ReaderAt, int64, error) {
	r, ok := f.(io.ReaderAt)
	if !ok {
		return nil, 0, fmt.Errorf("file system gives %T, which has no ReadAt", f)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	return r, st.Size(), nil
}
