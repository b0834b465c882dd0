package project

import (
	"fmt"
	"strings"

	"github.com/skein-rl/skein/recipes"
)

// Recipes lists the embedded recipes.
func Recipes() []string {
	var names []string
	entries, _ := recipes.FS.ReadDir(".") // an embedded folder can be listed
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// LoadRecipe reads an embedded recipe, with overrides as in Load.
func LoadRecipe(name string, sets []string) (Config, []string, error) {
	text, err := recipes.FS.ReadFile(name + ".yaml")
	if err != nil {
		return Config{}, nil, fmt.Errorf("project: recipe %q: not in this binary; there are %s", name, strings.Join(Recipes(), ", "))
	}
	cfg, notes, err := parse(text, sets)
	if err != nil {
		err = fmt.Errorf("recipe %s: %w", name, err)
	}
	return cfg, notes, err
}
