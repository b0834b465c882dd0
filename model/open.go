package model

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Open loads a model: a HF directory (config.json, safetensors, tokenizer.json,
// chat template) or a .gguf file. Tokenizer and Template are nil when the
// files have none. Errors name the file, its offending part and wrap ErrFormat
// when the file is bad.
func Open(path string) (*Model, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: open: %w", err)
	}
	var m *Model
	if st.IsDir() {
		m, err = OpenFS(os.DirFS(path))
	} else {
		m, err = openGGUF(path)
	}
	if err != nil {
		return nil, fmt.Errorf("model: open %s: %w", path, err)
	}
	m.Name = strings.TrimSuffix(filepath.Base(path), ".gguf")
	return m, nil
}

// OpenFS loads a HF directory from a file system whose files have ReadAt, such
// as an embed.FS or os.DirFS.
func OpenFS(fsys fs.FS) (*Model, error) {
	m, err := openWeightsFS(fsys)
	if err != nil {
		return nil, err
	}
	if m.Tokenizer, m.Template, err = openTextFS(fsys); err != nil {
		return nil, err
	}
	return m, m.checkText()
}

// OpenWeights loads the weights and configuration of a HF directory without
// tokenizer and template.
func OpenWeights(path string) (*Model, error) {
	m, err := openWeightsFS(os.DirFS(path))
	if err != nil {
		return nil, fmt.Errorf("model: open %s: %w", path, err)
	}
	m.Name = filepath.Base(path)
	return m, nil
}

func (m *Model) checkText() error {
	if m.Tokenizer == nil {
		return nil
	}
	return m.Tokenizer.CheckVocab(m.Config.VocabSize)
}

func openGGUF(path string) (*Model, error) {
	g, f, err := openGGUFHeader(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &Model{}
	if m.Config, err = ggufConfig(g); err != nil {
		return nil, err
	}
	if m.Tokenizer, m.Template, err = ggufText(g); err != nil {
		return nil, err
	}
	if err := m.checkText(); err != nil {
		return nil, err
	}
	m.StopIDs = ggufStops(g)
	if m.Weights, err = ggufWeights(g, m.Config); err != nil {
		return nil, err
	}
	m.Digest = weightsDigest(m.Config, m.Weights)
	return m, nil
}

// openGGUFHeader reads the header; the caller closes the file.
func openGGUFHeader(path string) (*GGUF, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	r, size, err := readerAt(f)
	if err == nil {
		var g *GGUF
		if g, err = ReadGGUF(r, size); err == nil {
			return g, f, nil
		}
	}
	f.Close()
	return nil, nil, err
}

// OpenText loads only the tokenizer and chat template of a model, for uses that
// need no weights. Either may be nil.
func OpenText(path string) (*Tokenizer, *ChatTemplate, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("model: open: %w", err)
	}
	var tok *Tokenizer
	var tmpl *ChatTemplate
	if st.IsDir() {
		tok, tmpl, err = openTextFS(os.DirFS(path))
	} else {
		var g *GGUF
		var f *os.File
		if g, f, err = openGGUFHeader(path); err == nil {
			defer f.Close()
			tok, tmpl, err = ggufText(g)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("model: open %s: %w", path, err)
	}
	return tok, tmpl, nil
}
