// Package recipes holds the ready-made configurations, embedded so that the
// binary alone can run them.
package recipes

import "embed"

// FS has every recipe as NAME.yaml.
//
//go:embed *.yaml
var FS embed.FS
