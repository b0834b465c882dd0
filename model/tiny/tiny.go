// Package tiny is the embedded model: a Llama-shaped decoder of about a million
// parameters that calls tools half right. It makes the whole loop run with
// nothing installed or downloaded. data/README.md says how it was made;
// `make tiny-model` makes it again.
package tiny

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/skein-rl/skein/model"
)

//go:embed data
var data embed.FS

// Name is how configurations and reports call the model.
const Name = "embedded:tiny"

// Open loads the model with its tokenizer and chat template.
func Open() (*model.Model, error) {
	sub, err := fs.Sub(data, "data")
	if err != nil {
		return nil, fmt.Errorf("tiny: %w", err)
	}
	m, err := model.OpenFS(sub)
	if err != nil {
		return nil, fmt.Errorf("tiny: the embedded model: %w", err)
	}
	m.Name = Name
	return m, nil
}
