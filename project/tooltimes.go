package project

import (
	"sort"
	"strings"

	"github.com/skein-rl/skein/rollout"
)

// A worker's heartbeat tells the times of its slowest tools among its other
// numbers, under "tool/NAME/WHAT".

// ToolTime is how long one tool's calls took at a worker; times in seconds.
type ToolTime struct{ Calls, Errors, Seconds, Max float64 }

// Mean seconds of a call.
func (t ToolTime) Mean() float64 {
	if t.Calls == 0 {
		return 0
	}
	return t.Seconds / t.Calls
}

const toldTools = 5 // of a heartbeat: those with the greatest mean

// tellTools adds the slowest tools to a heartbeat's numbers.
func tellTools(into map[string]float64, times map[string]rollout.ToolTime) {
	names := make([]string, 0, len(times))
	for name := range times {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool {
		a, b := times[names[i]].Mean(), times[names[j]].Mean()
		return a > b || a == b && names[i] < names[j]
	})
	for _, name := range names[:min(toldTools, len(names))] {
		t := times[name]
		into["tool/"+name+"/calls"] += float64(t.Calls)
		into["tool/"+name+"/errors"] += float64(t.Errors)
		into["tool/"+name+"/seconds"] += t.Total.Seconds()
		into["tool/"+name+"/max"] = max(into["tool/"+name+"/max"], t.Max.Seconds())
	}
}

// ToolTimes reads them back from a node's metrics.
func ToolTimes(metrics map[string]float64) map[string]ToolTime {
	out := map[string]ToolTime{}
	for key, v := range metrics {
		rest, ok := strings.CutPrefix(key, "tool/")
		at := strings.LastIndexByte(rest, '/')
		if !ok || at < 0 {
			continue
		}
		t := out[rest[:at]]
		switch rest[at+1:] {
		case "calls":
			t.Calls = v
		case "errors":
			t.Errors = v
		case "seconds":
			t.Seconds = v
		case "max":
			t.Max = v
		}
		out[rest[:at]] = t
	}
	return out
}
