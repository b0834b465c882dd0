package model

import (
	"fmt"
	"os"
	"path/filepath"
)

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
