package model

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// OpenOption changes how Open, OpenFS and OpenWeights read.
type OpenOption func(*opening)

type opening struct {
	progress func(done, total int64)
	long     bool
}

// WithProgress has report told, from the caller's goroutine, how many of the
// stored bytes of all tensors are read.
func WithProgress(report func(done, total int64)) OpenOption {
	return func(o *opening) { o.progress = report }
}

func newOpening(options []OpenOption) (o opening) {
	for _, f := range options {
		f(&o)
	}
	return o
}

// finish gives a model its weights and digest. The files are closed when it
// fails.
func (o opening) finish(m *Model, s *stored) (err error) {
	defer func() {
		if err != nil {
			s.close() // read only: nothing to lose
		}
	}()
	if m.Weights, err = s.weights(); err != nil {
		return err
	}
	m.Digest, err = s.digest(o.counter(s))
	return err
}

// counter adds up what is read; nil when nobody wants to know.
func (o opening) counter(s *stored) func(n int64) {
	if o.progress == nil {
		return nil
	}
	var done, total int64
	for i := range s.tensors {
		total += s.tensors[i].bytes()
	}
	return func(n int64) {
		done += n
		o.progress(done, total)
	}
}

// Open opens a model: a HF directory (config.json, safetensors, tokenizer.json,
// chat template) or a .gguf file, the first one when the model is split into
// several. Tokenizer and Template are nil when the files have none. Errors name
// the file, its offending part and wrap ErrFormat when the file is bad.
//
// Every number is read once, for the digest, but the weights stay in the files
// (see Weights): the caller closes the model when it needs no more of them.
func Open(path string, options ...OpenOption) (*Model, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: open: %w", err)
	}
	var m *Model
	if st.IsDir() {
		m, err = OpenFS(os.DirFS(path), options...)
	} else {
		m, err = openGGUF(path, newOpening(options))
	}
	if err != nil {
		return nil, fmt.Errorf("model: open %s: %w", path, err)
	}
	m.Name = strings.TrimSuffix(filepath.Base(path), ".gguf")
	return m, nil
}

// OpenFS loads a HF directory from a file system whose files have ReadAt, such
// as an embed.FS or os.DirFS.
func OpenFS(fsys fs.FS, options ...OpenOption) (*Model, error) {
	m, err := openWeightsFS(fsys, newOpening(options))
	if err != nil {
		return nil, err
	}
	if m.Tokenizer, m.Template, err = openTextFS(fsys); err == nil {
		err = m.checkText()
	}
	if err != nil {
		m.Close() // read only: nothing to lose
		return nil, err
	}
	return m, nil
}

// OpenWeights loads the weights and configuration of a HF directory without
// tokenizer and template.
func OpenWeights(path string, options ...OpenOption) (*Model, error) {
	m, err := openWeightsFS(os.DirFS(path), newOpening(options))
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

func openGGUF(path string, o opening) (*Model, error) {
	g, f, err := openGGUFHeader(path)
	if err != nil {
		return nil, err
	}
	m, s, err := readGGUFModel(g, f, o)
	if err != nil {
		f.Close() // read only: nothing to lose
		return nil, err
	}
	return m, o.finish(m, s)
}

// readGGUFModel reads all but the weights.
func readGGUFModel(g *GGUF, f io.Closer, o opening) (*Model, *stored, error) {
	m := &Model{}
	var err error
	if m.Config, err = ggufConfig(g); err != nil {
		return nil, nil, err
	}
	m.Config.RopeScaling.Long = o.long && m.Config.RopeScaling.byLength()
	if m.Tokenizer, m.Template, err = ggufText(g); err != nil {
		return nil, nil, err
	}
	if err := m.checkText(); err != nil {
		return nil, nil, err
	}
	m.StopIDs = ggufStops(g)
	s, err := g.stored(m.Config, f)
	return m, s, err
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
		var f io.Closer
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
