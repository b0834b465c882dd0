package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// peftIgnored are adapter_config.json keys that don't change what a saved
// adapter computes: provenance, training-time settings, and options whose own
// switch is checked elsewhere.
var peftIgnored = map[string]bool{
	"auto_mapping": true, "base_model_name_or_path": true, "revision": true, "task_type": true,
	"inference_mode": true, "lora_dropout": true, "peft_version": true, "runtime_config": true,
	"megatron_core": true, "qalora_group_size": true, "loftq_config": true, "eva_config": true,
	"ensure_weight_tying": true,
}

// parsePEFTConfig reads adapter_config.json; score says that a value head is
// saved beside. A key it doesn't know is accepted only when its value is neutral
// (null, false, zero or empty).
func parsePEFTConfig(data []byte) (lora LoRAConfig, score bool, err error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return LoRAConfig{}, false, fmt.Errorf("%w: not a JSON object: %v", ErrFormat, err)
	}
	var l LoRAConfig
	var errs []error
	take := func(key string, dst any, required bool) {
		v, ok := raw[key]
		delete(raw, key)
		if !ok {
			if required {
				errs = append(errs, fmt.Errorf("%s is missing", key))
			}
			return
		}
		if err := json.Unmarshal(v, dst); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %v", key, v, err))
		}
	}
	var kind string
	bias := "none"
	var targets json.RawMessage
	var init any
	var saved []string
	take("peft_type", &kind, true)
	take("r", &l.Rank, true)
	take("lora_alpha", &l.Alpha, true)
	take("use_rslora", &l.RSLoRA, false)
	take("rank_pattern", &l.RankPattern, false)
	take("alpha_pattern", &l.AlphaPattern, false)
	take("bias", &bias, false)
	take("target_modules", &targets, true)
	take("init_lora_weights", &init, false)
	take("modules_to_save", &saved, false)

	if kind != "" && kind != "LORA" {
		errs = append(errs, fmt.Errorf("peft_type %q is not implemented (have LORA)", kind))
	}
	if bias != "none" {
		errs = append(errs, fmt.Errorf("bias %q is not implemented (have none)", bias))
	}
	if s, ok := init.(string); ok {
		// These initialisations subtract the adapter from the base weights.
		for _, moved := range []string{"pissa", "olora", "corda", "loftq", "lora_ga"} {
			if strings.HasPrefix(strings.ToLower(s), moved) {
				errs = append(errs, fmt.Errorf("init_lora_weights %q changes the base weights, which is not implemented: convert the adapter to plain LoRA", s))
			}
		}
	}
	for _, m := range saved {
		score = score || m == "score"
		if !slices.Contains(peftHeads, m) {
			errs = append(errs, fmt.Errorf("modules_to_save: %q is not implemented (have %q, the value head)", m, "score"))
		}
	}
	if err := parseTargets(targets, &l); err != nil {
		errs = append(errs, err)
	}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if !peftIgnored[key] && !isNeutral(raw[key]) {
			errs = append(errs, fmt.Errorf("%s = %s is not implemented", key, raw[key]))
		}
	}
	if len(errs) == 0 {
		if err := l.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return LoRAConfig{}, false, fmt.Errorf("%w: %w", ErrAdapter, err)
	}
	return l, score, nil
}

// parseTargets accepts PEFT's list and its "all-linear"; patterns are refused.
func parseTargets(raw json.RawMessage, l *LoRAConfig) error {
	if isNull(raw) {
		return fmt.Errorf("target_modules is null: list the projections")
	}
	var pattern string
	if json.Unmarshal(raw, &pattern) == nil {
		if pattern == AllLinear {
			l.Targets = []string{AllLinear} // the reader resolves it
			return nil
		}
		return fmt.Errorf("target_modules %q is a pattern, which is not implemented: list the projections", pattern)
	}
	if err := json.Unmarshal(raw, &l.Targets); err != nil {
		return fmt.Errorf("target_modules: %s: %v", raw, err)
	}
	// PEFT writes a set in arbitrary order.
	known := knownProjections()
	slices.SortFunc(l.Targets, func(a, b string) int { return slices.Index(known, a) - slices.Index(known, b) })
	return nil
}

func isNeutral(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "null", "false", "0", "0.0", `""`, "[]", "{}":
		return true
	}
	return false
}
