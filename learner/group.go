package learner

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/eventlog"
)

// Group is one prompt's sibling rollouts as leased.
type Group struct {
	ID    string // opaque
	Index uint64 // position in the task stream
	Logs  []*eventlog.Log
	// Closed says that the store ended the group early (its deadline passed), so
	// that missing members are known to be missing. Without it a group must be
	// whole.
	Closed bool
	// Extra is how many members beyond num_generations were rolled out, of which
	// the store took the first that did well (replay.Stragglers.Oversample).
	Extra uint32
}

// Reasons a group is refused.
var (
	// ErrPartialGroup: a member is missing though the group was not closed.
	ErrPartialGroup = errors.New("learner: partial group")
	// ErrMixedGroup: a log belongs to another group or another size of it.
	ErrMixedGroup = errors.New("learner: mixed group")
	// ErrDuplicateMember: two logs claim one member.
	ErrDuplicateMember = errors.New("learner: duplicate member")
	// ErrStaleTokens: a token to train is older than the bound, or newer than
	// the learner.
	ErrStaleTokens = errors.New("learner: tokens outside the staleness bound")
)

// GroupError refuses one group. Err wraps one of the reasons above.
type GroupError struct {
	Group string
	Err   error
}

func (e *GroupError) Error() string { return fmt.Sprintf("group %q: %v", e.Group, e.Err) }
func (e *GroupError) Unwrap() error { return e.Err }

// Admit splits groups into those that may be trained at the learner's version
// and those that promise P3 forbids. It reads no rewards.
func Admit(c Config, version uint64, groups []Group) (ok []Group, refused []*GroupError) {
	seen := map[string]bool{}
	for _, g := range groups {
		err := admit(c, version, g)
		if err == nil && seen[g.ID] {
			err = fmt.Errorf("%w: the group is listed twice", ErrDuplicateMember)
		}
		seen[g.ID] = true
		if err != nil {
			refused = append(refused, &GroupError{g.ID, err})
			continue
		}
		ok = append(ok, g)
	}
	return ok, refused
}

func admit(c Config, version uint64, g Group) error {
	if g.ID == "" || len(g.Logs) == 0 {
		return fmt.Errorf("%w: it has %d logs", ErrPartialGroup, len(g.Logs))
	}
	size := g.Logs[0].Meta.GroupSize
	if int(size) != c.NumGenerations && int(size) != c.NumGenerations+int(g.Extra) {
		return fmt.Errorf("%w: log %s was rolled out in a group of %d, num_generations is %d", ErrMixedGroup, g.Logs[0].ID, size, c.NumGenerations)
	}
	members := map[uint32]string{}
	for _, l := range g.Logs {
		m := l.Meta
		switch first, dup := members[m.Member]; {
		case m.Group != g.ID:
			return fmt.Errorf("%w: log %s belongs to group %q", ErrMixedGroup, l.ID, m.Group)
		case m.GroupSize != size:
			return fmt.Errorf("%w: log %s has group size %d, log %s has %d", ErrMixedGroup, l.ID, m.GroupSize, g.Logs[0].ID, size)
		case dup:
			return fmt.Errorf("%w: logs %s and %s are both member %d", ErrDuplicateMember, first, l.ID, m.Member)
		}
		members[m.Member] = l.ID
		if err := checkStaleness(c, version, l); err != nil {
			return err
		}
	}
	if len(g.Logs) < int(size) && !g.Closed {
		return fmt.Errorf("%w: %d of %d members", ErrPartialGroup, len(g.Logs), size)
	}
	return nil
}

// checkStaleness asserts that every token a log would train was sampled at most
// MaxStaleness versions ago; with 0, under exactly the learner's version.
func checkStaleness(c Config, version uint64, l *eventlog.Log) error {
	if excluded(l) != "" {
		return nil // it will not be trained
	}
	rows, err := l.TrainRows(c.trainFrom(l))
	if err != nil {
		return nil //nolint:nilerr // nor this: it has no tokens, which Build counts
	}
	for _, r := range rows {
		at := l.Branches[r.Branch].Versions()
		for t, on := range r.Mask {
			if !on {
				continue
			}
			v := at[t]
			if v > version {
				return fmt.Errorf("%w: log %s branch %d token %d was sampled under version %d, the learner is at %d (restore its last checkpoint)", ErrStaleTokens, l.ID, r.Branch, t, v, version)
			}
			if version-v > c.MaxStaleness {
				return fmt.Errorf("%w: log %s branch %d token %d was sampled under version %d, the learner is at %d and max_staleness is %d", ErrStaleTokens, l.ID, r.Branch, t, v, version, c.MaxStaleness)
			}
		}
	}
	return nil
}

// trainFrom is the oldest policy version whose tokens of a log are trained.
func (c Config) trainFrom(l *eventlog.Log) uint64 {
	if !c.MaskOffPolicyInPartialRollout {
		return 0
	}
	_, newest, _ := l.PolicyVersions()
	return newest
}

// excluded says why a log takes no part in its group's statistics, "" when it
// does. It looks at the log alone; tokens and reward are checked by the caller.
func excluded(l *eventlog.Log) string {
	switch l.Meta.Status {
	case eventlog.OK, eventlog.Truncated:
	case eventlog.TimedOut:
		return "timed_out" + boundary(l.Meta.Cause)
	case eventlog.Failed:
		return "failed" + boundary(l.Meta.Cause)
	default:
		return "status_unknown"
	}
	if l.Tier != eventlog.Full {
		return "light_log"
	}
	return ""
}

// boundary is the part of a cause before its colon: few values, so that reasons
// can be counted.
func boundary(cause string) string {
	b, _, _ := strings.Cut(cause, ":")
	b = strings.TrimSpace(b)
	if b == "" || len(b) > 40 || strings.ContainsAny(b, "\n\t") {
		return ""
	}
	return ": " + b
}

// sorted puts groups into the order of the task stream and logs into member
// order, so that no order of arrival can change a sum.
func sorted(groups []Group) []Group {
	out := slices.Clone(groups)
	slices.SortStableFunc(out, func(a, b Group) int {
		if a.Index != b.Index {
			if a.Index < b.Index {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
	for i := range out {
		out[i].Logs = slices.Clone(out[i].Logs)
		slices.SortStableFunc(out[i].Logs, func(a, b *eventlog.Log) int { return int(a.Meta.Member) - int(b.Meta.Member) })
	}
	return out
}
