package learner

import (
	"maps"
	"math"
	"slices"
)

// schedules map (optimizer steps done, warm-up, total) to the factor on the
// peak rate, as transformers.get_scheduler does; the cosine is the half wave of
// SGDR (Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5).
var schedules = map[string]func(done, warm, total float64) float64{
	"constant": func(_, _, _ float64) float64 { return 1 },
	"constant_with_warmup": func(done, warm, _ float64) float64 {
		return warmup(done, warm)
	},
	"linear": func(done, warm, total float64) float64 {
		if done < warm {
			return warmup(done, warm)
		}
		return max(0, (total-done)/max(1, total-warm))
	},
	"cosine": func(done, warm, total float64) float64 {
		if done < warm {
			return warmup(done, warm)
		}
		return max(0, 0.5*(1+math.Cos(math.Pi*(done-warm)/max(1, total-warm))))
	},
}

func warmup(done, warm float64) float64 {
	if done < warm {
		return done / max(1, warm)
	}
	return 1
}

// Schedules lists the names of learning-rate schedules, sorted.
func Schedules() []string { return slices.Sorted(maps.Keys(schedules)) }

// LR is the rate of the optimizer step that follows done steps of total.
func (c Config) LR(done uint64, total int) float64 {
	return c.LearningRate * schedules[c.LRSchedulerType](min(float64(done), float64(total)), float64(c.WarmupSteps), float64(total))
}
