package model

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// splitName is how the files of a split GGUF model are called.
var splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// openGGUFHeader reads the header of a file and, when it is the first of a
// split model, those of the others: their tensors are joined. Tensors can be
// read until the caller closes files.
func openGGUFHeader(path string) (g *GGUF, files io.Closer, err error) {
	var open closers
	defer func() {
		if err != nil {
			open.Close()
		}
	}()
	load := func(path string) (*GGUF, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		open = append(open, f)
		r, size, err := readerAt(f)
		if err != nil {
			return nil, err
		}
		return ReadGGUF(r, size)
	}
	if g, err = load(path); err != nil {
		return nil, nil, err
	}
	count, err := splitNumber(g, "split.count")
	if err != nil || count <= 1 {
		return g, open, err
	}
	m := splitName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return nil, nil, fmt.Errorf("%w: gguf: the model is split into %d files, but this one is not called NAME-00001-of-%05d.gguf: give the files back their names", ErrFormat, count, count)
	}
	name := func(i int) string { return fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[3]) }
	if of, _ := strconv.Atoi(m[3]); of != count {
		return nil, nil, fmt.Errorf("%w: gguf: split.count is %d, the file's name says %d", ErrFormat, count, of)
	}
	if m[2] != "00001" {
		return nil, nil, fmt.Errorf("%w: gguf: this is part %s of %d of a split model: open the first, %s", ErrFormat, m[2], count, name(1))
	}
	for i := 1; i <= count; i++ {
		part := g
		if i > 1 {
			if part, err = load(filepath.Join(filepath.Dir(path), name(i))); err != nil {
				return nil, nil, fmt.Errorf("part %d of %d of the split model: %w", i, count, err)
			}
		}
		if no, err := splitNumber(part, "split.no"); err != nil || no != i-1 {
			return nil, nil, fmt.Errorf("%w: gguf: %s says it is part %d of the split model (split.no from 0), its name part %d: give the files back their names", ErrFormat, name(i), no+1, i)
		}
		if i == 1 {
			continue
		}
		for _, n := range part.names {
			if _, dup := g.tensors[n]; dup {
				return nil, nil, fmt.Errorf("%w: gguf: tensor %q of %s is in an earlier part too", ErrFormat, n, name(i))
			}
			g.names, g.tensors[n] = append(g.names, n), part.tensors[n]
		}
	}
	if want, err := splitNumber(g, "split.tensors.count"); err != nil || want != len(g.names) {
		return nil, nil, fmt.Errorf("%w: gguf: the parts hold %d tensors, split.tensors.count is %d", ErrFormat, len(g.names), want)
	}
	return g, open, nil
}

// splitNumber is a small number of the metadata, 0 when absent.
func splitNumber(g *GGUF, key string) (int, error) {
	switch v := g.Meta[key].(type) {
	case nil:
		return 0, nil
	case uint64:
		if v < 1<<31 {
			return int(v), nil
		}
	case int64:
		if v >= 0 && v < 1<<31 {
			return int(v), nil
		}
	}
	return 0, fmt.Errorf("%w: gguf: %s is %v, want a number below 2^31", ErrFormat, key, g.Meta[key])
}
