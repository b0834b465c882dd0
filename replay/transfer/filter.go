package transfer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// Filter says which logs of a run. Zero fields let everything pass.
type Filter struct {
	Table  string   `json:"table,omitempty"`
	IDs    []string `json:"ids,omitempty"` // of logs
	Task   string   `json:"task,omitempty"`
	Group  string   `json:"group,omitempty"`
	Worker string   `json:"worker,omitempty"`
	// Author of at least one event: exactly, or with a "*" at its end by prefix
	// ("human:*"). It makes every log be read.
	Author string `json:"author,omitempty"`
	Status string `json:"status,omitempty"` // ok, truncated, failed, timeout
	// Rewards bound: a log without one is in no range.
	MinReward  *float64  `json:"min_reward,omitempty"`
	MaxReward  *float64  `json:"max_reward,omitempty"`
	MinVersion uint64    `json:"min_version,omitempty"` // oldest policy version of any token
	MaxVersion *uint64   `json:"max_version,omitempty"` // newest
	Since      time.Time `json:"since,omitzero"`        // made then or later
	Until      time.Time `json:"until,omitzero"`        // made before
}

var statuses = map[string]eventlog.Status{"ok": eventlog.OK, "truncated": eventlog.Truncated, "failed": eventlog.Failed, "timeout": eventlog.TimedOut}

// StatusName is a status as Filter and Row have it.
func StatusName(s eventlog.Status) string {
	for name, v := range statuses {
		if v == s {
			return name
		}
	}
	return "unknown"
}

// Validate reports every problem at once.
func (f Filter) Validate() error {
	var errs []error
	if _, ok := statuses[f.Status]; f.Status != "" && !ok {
		errs = append(errs, fmt.Errorf("status %q: want ok, truncated, failed or timeout", f.Status))
	}
	for _, r := range []*float64{f.MinReward, f.MaxReward} {
		if r != nil && math.IsNaN(*r) {
			errs = append(errs, errors.New("reward NaN: want a number"))
		}
	}
	if f.MinReward != nil && f.MaxReward != nil && *f.MinReward > *f.MaxReward {
		errs = append(errs, fmt.Errorf("min-reward %v above max-reward %v", *f.MinReward, *f.MaxReward))
	}
	if f.MaxVersion != nil && f.MinVersion > *f.MaxVersion {
		errs = append(errs, fmt.Errorf("min-version %d above max-version %d", f.MinVersion, *f.MaxVersion))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		errs = append(errs, fmt.Errorf("since %v is not before until %v", f.Since, f.Until))
	}
	if i := strings.IndexByte(f.Author, '*'); i >= 0 && i != len(f.Author)-1 {
		errs = append(errs, fmt.Errorf("author %q: a * stands at the end only", f.Author))
	}
	return errors.Join(errs...)
}

// All says whether every log of the run passes.
func (f Filter) All() bool {
	return f.Table == "" && len(f.IDs) == 0 && f.Task == "" && f.Group == "" && f.Worker == "" && f.Author == "" && f.Status == "" &&
		f.MinReward == nil && f.MaxReward == nil && f.MinVersion == 0 && f.MaxVersion == nil && f.Since.IsZero() && f.Until.IsZero()
}

// Match judges what the index knows; MatchLog the rest.
func (f Filter) Match(it replay.Item) bool {
	return (f.Table == "" || it.Table == f.Table) && (len(f.IDs) == 0 || slices.Contains(f.IDs, it.LogID)) &&
		(f.Task == "" || it.Task == f.Task) && (f.Group == "" || it.Group == f.Group) && (f.Worker == "" || it.Worker == f.Worker) &&
		(f.Status == "" || eventlog.Status(it.Status) == statuses[f.Status]) &&
		(f.MinReward == nil || it.HasReward && it.Reward >= *f.MinReward) &&
		(f.MaxReward == nil || it.HasReward && it.Reward <= *f.MaxReward) &&
		it.MinVersion >= f.MinVersion && (f.MaxVersion == nil || it.MaxVersion <= *f.MaxVersion) &&
		(f.Since.IsZero() || !it.Created.Before(f.Since)) && (f.Until.IsZero() || it.Created.Before(f.Until))
}

// NeedsBytes says whether MatchLog has something to judge.
func (f Filter) NeedsBytes() bool { return f.Author != "" }

// MatchLog judges a log's contents.
func (f Filter) MatchLog(data []byte) (bool, error) {
	if f.Author == "" {
		return true, nil
	}
	l, err := eventlog.Decode(data)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.Events, func(e eventlog.Event) bool { return byAuthor(e.Author, f.Author) }), nil
}

// byAuthor compares an author with a pattern.
func byAuthor(author, pattern string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(author, prefix)
	}
	return author == pattern
}
