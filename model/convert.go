package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// WriteOptions say how Write writes.
type WriteOptions struct {
	// Type of the matrices: F32, F16 or BF16, for a .gguf file also Q8_0, Q5_1,
	// Q5_0, Q4_1, Q4_0. "" = F32.
	Type string
	// Replace an existing file or model folder; without it that is an error
	// wrapping fs.ErrExist.
	Replace bool
	// Progress, unless nil, is told of bytes written and their total. For a
	// folder it is called once, at the end.
	Progress func(done, total int64)
}

// Write writes the model to dst: with a name that ends in .gguf as SaveGGUF
// does, else as a folder as Save does. dst appears when everything is written,
// and what it replaces goes then. notes tell what the format cannot carry.
func (m *Model) Write(dst string, o WriteOptions) (notes []string, err error) {
	typ := o.Type
	if typ == "" {
		typ = string(F32)
	}
	if err := checkTarget(dst, o.Replace); err != nil {
		return nil, err
	}
	if strings.HasSuffix(dst, ".gguf") {
		return m.SaveGGUF(dst, typ, o.Progress)
	}
	if plainTypes[DType(typ)].encode == nil {
		return nil, fmt.Errorf("model: write %s: type %s is not for safetensors (have F32, F16, BF16): choose one of these, or a name that ends in .gguf", dst, typ)
	}
	parent, base := filepath.Split(filepath.Clean(dst))
	tmp, err := os.MkdirTemp(parent, "."+base+"-*")
	if err != nil {
		return nil, fmt.Errorf("model: write: %w", err)
	}
	defer os.RemoveAll(tmp) // gone already when all went well
	fresh := filepath.Join(tmp, "new")
	if err := m.Save(fresh, DType(typ)); err != nil {
		return nil, err
	}
	// A folder can't be replaced in one step: the old one steps aside.
	old := filepath.Join(tmp, "old")
	if err := os.Rename(dst, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model: write: %w", err)
	}
	if err := os.Rename(fresh, dst); err != nil {
		return nil, errors.Join(fmt.Errorf("model: write: %w", err), ignoreMissing(os.Rename(old, dst)))
	}
	if o.Progress != nil {
		n := m.Config.NumParams() * int64(plainTypes[DType(typ)].bytes)
		o.Progress(n, n)
	}
	return nil, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// checkTarget refuses to write over what is there, and over anything that is no
// model even with replace.
func checkTarget(dst string, replace bool) error {
	st, err := os.Stat(dst)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("model: write: %w", err)
	}
	file := strings.HasSuffix(dst, ".gguf")
	if file == st.IsDir() {
		kind := map[bool]string{true: "a folder, but a name that ends in .gguf means a file", false: "a file, but a name that does not end in .gguf means a folder"}[st.IsDir()]
		return fmt.Errorf("model: write %s: it is %s: choose another name", dst, kind)
	}
	if !replace {
		return fmt.Errorf("model: write %s: %w", dst, fs.ErrExist)
	}
	if file {
		return nil
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return fmt.Errorf("model: write: %w", err)
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == hfConfigFile }) {
		return fmt.Errorf("model: write %s: the folder holds other things than a model (no %s) and is left alone: choose another name", dst, hfConfigFile)
	}
	return nil
}
