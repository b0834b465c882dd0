package eventlog

import (
	"errors"
	"fmt"
)

// ErrNoSampledTokens marks a trajectory the learner must not be given: no token
// of its accepted branches was sampled by a policy (and within the version
// bound, where one was asked for).
var ErrNoSampledTokens = errors.New("eventlog: trajectory without sampled tokens")

// PolicyVersions returns the lowest and highest policy version that sampled a
// token of any branch and how many tokens were sampled, a token shared by
// branches counted once. All three are 0 when sampled is.
func (l *Log) PolicyVersions() (lowest, highest uint64, sampled int) {
	for i := range l.Branches {
		b := &l.Branches[i]
		from := b.Fork
		start := int32(0)
		for _, r := range b.Runs {
			n := int(r.End - max(start, from))
			start = r.End
			if r.Writer != Policy || n <= 0 {
				continue
			}
			if sampled == 0 {
				lowest, highest = r.Version, r.Version
			}
			lowest, highest = min(lowest, r.Version), max(highest, r.Version)
			sampled += n
		}
	}
	return lowest, highest, sampled
}

// Versions returns the policy version of every token, 0 where no policy wrote
// it. len = len(IDs).
func (b *Branch) Versions() []uint64 {
	out := make([]uint64, 0, len(b.IDs))
	for _, r := range b.Runs {
		for len(out) < int(r.End) {
			out = append(out, r.Version)
		}
	}
	return out
}

// PolicyMask returns which tokens a policy of at least minVersion sampled. With
// minVersion 0 it is the mask of all sampled tokens; with the learner's version
// it leaves out the older part of a resumed partial rollout. len = len(IDs).
func (b *Branch) PolicyMask(minVersion uint64) []bool {
	out := make([]bool, 0, len(b.IDs))
	for _, r := range b.Runs {
		in := r.Writer == Policy && r.Version >= minVersion
		for len(out) < int(r.End) {
			out = append(out, in)
		}
	}
	return out
}

// TrainRow is one accepted branch as the learner sees it.
type TrainRow struct {
	Branch  int    // index into Log.Branches
	Mask    []bool // tokens to train; len = len(IDs)
	Trained int    // number of true entries
}

// TrainRows returns the accepted branches with the tokens to train in each:
// those a policy of at least minVersion sampled, a token shared by accepted
// branches in the first of them only. A branch with nothing to train is left
// out; when none remains the error is [ErrNoSampledTokens] with the log's id.
func (l *Log) TrainRows(minVersion uint64) ([]TrainRow, error) {
	var rows []TrainRow
	// claimed[i]: leading tokens of branch i that an earlier accepted branch
	// trains.
	claimed := make([]int32, len(l.Branches))
	for i := range l.Branches {
		if !l.Branches[i].Accepted {
			continue
		}
		mask := l.Branches[i].PolicyMask(minVersion)
		clear(mask[:l.claim(claimed, i)])
		n := 0
		for _, in := range mask {
			if in {
				n++
			}
		}
		if n > 0 {
			rows = append(rows, TrainRow{Branch: i, Mask: mask, Trained: n})
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("log %s (status %v, min version %d): %w", l.ID, l.Meta.Status, minVersion, ErrNoSampledTokens)
	}
	return rows, nil
}

// claim returns how many leading tokens of branch i are claimed, and claims all
// of them in i and its ancestors.
func (l *Log) claim(claimed []int32, i int) int32 {
	before, common := int32(0), int32(len(l.Branches[i].IDs))
	for {
		before = max(before, min(common, claimed[i]))
		claimed[i] = max(claimed[i], common)
		b := &l.Branches[i]
		if int(b.Parent) >= i {
			return before
		}
		common, i = min(common, b.Fork), int(b.Parent)
	}
}
