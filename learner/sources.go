package learner

import (
	"maps"
	"math"
	"slices"
)

// sourceWeight is how much a rollout of a task source counts.
func (c Config) sourceWeight(source string) float64 {
	if w, ok := c.SourceWeights[source]; ok {
		return w
	}
	return 1
}

func (c Config) validateSources(bad func(string, ...any)) {
	for _, name := range slices.Sorted(maps.Keys(c.SourceWeights)) {
		if w := c.SourceWeights[name]; !(w >= 0) || math.IsInf(w, 0) {
			bad("source_weights.%s: %v is not a finite number >= 0", name, w)
		}
	}
}

// maxSources bounds the sources that become metrics.
const maxSources = 32

// sources adds each source's share and reward, where there are several.
func (s *stepRun) sources(m map[string]float64) {
	rollouts, tokens, reward := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, e := range s.b.Episodes {
		rollouts[e.Source]++
		tokens[e.Source] += float64(e.Tokens)
		reward[e.Source] += e.Reward
	}
	if len(rollouts) < 2 {
		return
	}
	for k, name := range slices.Sorted(maps.Keys(rollouts)) {
		if k == maxSources {
			return
		}
		m["sources/"+name+"/rollouts"], m["sources/"+name+"/tokens"] = rollouts[name], tokens[name]
		m["sources/"+name+"/reward"] = reward[name] / rollouts[name]
	}
}
