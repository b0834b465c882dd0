package project

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/skein-rl/skein/rollout"
)

// ChatConfig says how the model's chat template is used.
type ChatConfig struct {
	// TemplateVars are variables of the template, such as enable_thinking: false.
	// One that the template does not read is refused when the model is opened.
	TemplateVars map[string]any `yaml:"template_vars,omitempty" json:"template_vars,omitempty"`
	// CallFormat is how tool calls are read from what the model writes: "auto",
	// the format the template teaches, or one of rollout.CallFormats. The run's
	// record has the format that was chosen.
	CallFormat string `yaml:"call_format" json:"call_format"`
}

// options are those for rollout.NewModelChat.
func (c ChatConfig) options() []rollout.ChatOption {
	return []rollout.ChatOption{rollout.WithTemplateVars(c.TemplateVars), rollout.WithCallFormat(c.CallFormat)}
}

func (c ChatConfig) validate(bad func(field string, value any, remedy string)) {
	if c.CallFormat != rollout.AutoCallFormat {
		if _, err := rollout.CallFormatNamed(c.CallFormat); err != nil {
			bad("chat.call_format", fmt.Sprintf("%q", c.CallFormat), "use "+rollout.AutoCallFormat+" or one of "+strings.Join(rollout.CallFormats(), ", "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.TemplateVars)) {
		if _, err := json.Marshal(c.TemplateVars[name]); err != nil {
			bad("chat.template_vars."+name, c.TemplateVars[name], "use a value that JSON has, such as false, 3 or text")
		}
	}
}
