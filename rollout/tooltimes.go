package rollout

import (
	"maps"
	"sync"
	"time"
)

// ToolTime is how long one tool's calls took.
type ToolTime struct {
	Calls  uint64
	Errors uint64 // of Calls, those that ended in an error, a timeout included
	Total  time.Duration
	Max    time.Duration
}

// Mean of the calls.
func (t ToolTime) Mean() time.Duration {
	if t.Calls == 0 {
		return 0
	}
	return t.Total / time.Duration(t.Calls)
}

// toolTimes keeps ToolTimes by name. A model can make names up, so their number
// is bounded: what comes later counts under "other".
type toolTimes struct {
	mu sync.Mutex
	by map[string]ToolTime
}

const maxToolNames = 64

func (t *toolTimes) add(name string, took time.Duration, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[string]ToolTime{}
	}
	if _, ok := t.by[name]; !ok && len(t.by) >= maxToolNames {
		name = "other"
	}
	v := t.by[name]
	v.Calls++
	if failed {
		v.Errors++
	}
	v.Total += took
	v.Max = max(v.Max, took)
	t.by[name] = v
}

func (t *toolTimes) get() map[string]ToolTime {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.by)
}
