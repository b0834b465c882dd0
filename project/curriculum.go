package project

import (
	"fmt"
	"math"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// Orders of a curriculum's pool.
const (
	OrderStream     = "stream"     // as the source has its tasks
	OrderDifficulty = "difficulty" // the easiest first, by what the source declares
)

// CurriculumConfig picks training tasks by how often they were solved, instead of
// in the order of the stream. What was measured is in the store, so that a resumed
// run goes on with the same tasks.
type CurriculumConfig struct {
	// Tasks is the pool: the first so many of the source.
	Tasks uint64 `yaml:"tasks"`
	// Target is the mean reward sought, in [0, 1]; unset = 0.5, where groups teach
	// most.
	Target *float64 `yaml:"target,omitempty"`
	// Candidates are drawn for each group, and the one nearest to Target is taken; 0
	// = 4, 1 = whatever is drawn.
	Candidates uint32 `yaml:"candidates,omitempty"`
	// Order of the pool, for phases: "stream" (the default) or "difficulty".
	Order string `yaml:"order,omitempty"`
	// Phases open the pool from its beginning: at a share of max_steps a share of the
	// pool, growing evenly in between. None = all of it from the start.
	Phases []CurriculumPhase `yaml:"phases,omitempty"`
}

// CurriculumPhase is a point of the pool's growth; both are shares in [0, 1].
type CurriculumPhase struct {
	At    float64 `yaml:"at"`
	Share float64 `yaml:"share"`
}

func (c Config) validateCurriculum(bad func(field string, value any, remedy string)) {
	k := c.Task.Curriculum
	if k == nil {
		return
	}
	if c.Training.Offline() {
		bad("task.curriculum", "set", fmt.Sprintf("%s trains on rows: use data.curriculum", c.Training.Algorithm))
	}
	if k.Tasks < 2 {
		bad("task.curriculum.tasks", k.Tasks, "say how many tasks there are to choose from, at least 2")
	}
	if t := k.Target; t != nil && !(*t >= 0 && *t <= 1) {
		bad("task.curriculum.target", *t, "use a mean reward in [0, 1], such as 0.5")
	}
	if k.Candidates > 256 {
		bad("task.curriculum.candidates", k.Candidates, "use at most 256")
	}
	switch k.Order {
	case "", OrderStream, OrderDifficulty:
	default:
		bad("task.curriculum.order", fmt.Sprintf("%q", k.Order), fmt.Sprintf("use %q or %q", OrderStream, OrderDifficulty))
	}
	for i, p := range k.Phases {
		at := fmt.Sprintf("task.curriculum.phases[%d]", i)
		if !(p.At >= 0 && p.At <= 1) || i > 0 && c.stepOf(p) <= c.stepOf(k.Phases[i-1]) {
			bad(at+".at", p.At, fmt.Sprintf("use shares of max_steps (%d) that rise by a step at least, from 0 to 1", c.Training.MaxSteps))
		}
		if !(p.Share > 0 && p.Share <= 1) {
			bad(at+".share", p.Share, "use a share of the pool above 0, at most 1")
		}
	}
}

// stepOf is the step at which a phase is reached.
func (c Config) stepOf(p CurriculumPhase) uint64 {
	return uint64(math.Round(p.At * float64(c.Training.MaxSteps)))
}

// curriculum is what the store decides by; nil without one.
func (c Config) curriculum() *replay.Curriculum {
	k := c.Task.Curriculum
	if k == nil {
		return nil
	}
	perMillion := func(x float64) uint32 { return uint32(math.Round(x * replay.PerMillion)) }
	out := &replay.Curriculum{Tasks: k.Tasks, Target: perMillion(.5), Candidates: k.Candidates, Seed: c.Training.Seed}
	if k.Target != nil {
		out.Target = perMillion(*k.Target)
	}
	if out.Candidates == 0 {
		out.Candidates = 4
	}
	for _, p := range k.Phases {
		out.Phases = append(out.Phases, replay.CurriculumPhase{Step: c.stepOf(p), Share: max(1, perMillion(p.Share))})
	}
	return out
}

// pool is the source whose tasks 0 to Tasks-1 are the curriculum's; the source
// itself without one. A source with fewer tasks, or that declares no difficulty
// where it is asked for, is an error.
func (c Config) pool(src rollout.Source) (rollout.Source, error) {
	k := c.Task.Curriculum
	if k == nil {
		return src, nil
	}
	pool, err := task.Pool(src, k.Tasks, k.Order == OrderDifficulty)
	if err != nil {
		return nil, fmt.Errorf("project: task.curriculum: %w", err)
	}
	return pool, nil
}
