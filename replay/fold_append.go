package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/skein-rl/skein/eventlog"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Validate says why an item could never be accepted, whatever the state; the
// error wraps ErrInvalid. Callers check before they send bytes anywhere.
func (it Item) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, checkID("LogID", it.LogID), checkID("Run", it.Run), checkID("Table", it.Table),
		checkID("Group", it.Group), checkID("Digest", it.Digest), checkOptionalID("Source", it.Source),
		checkOptionalID("Task", it.Task), checkOptionalID("Worker", it.Worker))
	if len(it.Cause) > 4*maxID || !utf8.ValidString(it.Cause) {
		add("Cause %q of %d bytes: want UTF-8 of at most %d", cut(it.Cause, 40), len(it.Cause), 4*maxID)
	}
	switch eventlog.Status(it.Status) {
	case eventlog.OK, eventlog.Truncated:
		if it.Tokens == 0 && it.Table == TableTrain {
			add("Tokens = 0 with status ok: a rollout without sampled tokens is a failed one (cause \"no_model_calls\")")
		}
	case eventlog.Failed, eventlog.TimedOut:
		if it.Cause == "" {
			add("Cause is empty: a failed rollout says why")
		}
	default:
		add("Status = %d: want ok, truncated, failed or timed out", it.Status)
	}
	if it.Member >= it.GroupSize || it.GroupSize > maxGroupSize {
		add("Member %d of GroupSize %d: want members below the size, and a size of 1 to %d", it.Member, it.GroupSize, maxGroupSize)
	}
	if it.MinVersion > it.MaxVersion {
		add("MinVersion %d above MaxVersion %d", it.MinVersion, it.MaxVersion)
	}
	if it.HasReward && (math.IsNaN(it.Reward) || math.IsInf(it.Reward, 0)) {
		add("Reward = %v: want a finite number, or HasReward false when it broke", it.Reward)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: item %q: %w", ErrInvalid, cut(it.LogID, maxID), err)
	}
	return nil
}

func (it *Item) failed() bool {
	s := eventlog.Status(it.Status)
	return s == eventlog.Failed || s == eventlog.TimedOut
}

// appendItems judges every item alone: one bad record never costs another.
func (f *fold) appendItems(items []Item) ([]AppendResult, error) {
	out := make([]AppendResult, len(items))
	for i := range items {
		res, err := f.appendItem(&items[i])
		if err != nil {
			return nil, err
		}
		out[i] = res
	}
	return out, nil
}

func (f *fold) appendItem(it *Item) (AppendResult, error) {
	r, err := f.run(it.Run)
	if ref := (*refusal)(nil); errors.As(err, &ref) {
		away := (*refusal)(nil)
		switch err := absent(f.kv, it.Run); {
		case errors.As(err, &away):
			return AppendResult{Busy: movedPrefix + away.err.Error()}, nil
		case err != nil:
			return AppendResult{}, err
		}
		return AppendResult{Rejected: ref.err.Error()}, nil
	}
	if err != nil {
		return AppendResult{}, err
	}
	if r.Moving != pb.RunMove_RUN_MOVE_NONE {
		return AppendResult{Busy: movedPrefix + "run " + it.Run + " is on its way between shards"}, nil
	}
	reject := func(err error) (AppendResult, error) {
		r.Rejected++
		return AppendResult{Rejected: err.Error()}, nil
	}
	if err := it.Validate(); err != nil {
		return reject(err)
	}
	if it.MaxVersion > r.LatestVersion {
		return reject(fmt.Errorf("%w: item %q: MaxVersion = %d, the latest published policy is %d (a counter of something else?)",
			ErrInvalid, it.LogID, it.MaxVersion, r.LatestVersion))
	}
	_, seen, err := f.kv.Get(itemKey(it.LogID))
	if err != nil {
		return AppendResult{}, err
	}
	if seen {
		r.Duplicates++
		return AppendResult{Duplicate: true}, nil
	}
	if it.Table != TableTrain && it.Table != TableEval {
		t, ok, err := f.table(it.Run, it.Table)
		if err != nil {
			return AppendResult{}, err
		}
		if ok {
			return f.appendToTable(r, t, it)
		}
		if busy, err := f.overQuota(r, it); err != nil || busy != nil {
			return orNone(busy), err
		}
		return AppendResult{}, f.storeItem(r, it)
	}

	g := new(pb.GroupState)
	ok, err := load(f.kv, groupKey(it.Run, it.Group), g)
	if err != nil {
		return AppendResult{}, err
	}
	if !ok {
		return reject(fmt.Errorf("%w: item %q: group %q of run %q was never dispatched (take a ticket for it, or use another table)",
			ErrInvalid, it.LogID, it.Group, it.Run))
	}
	if g.Table != it.Table || g.Size != it.GroupSize {
		return reject(fmt.Errorf("%w: item %q: Table %q and GroupSize %d, its group %q has %q and %d",
			ErrInvalid, it.LogID, it.Table, it.GroupSize, it.Group, g.Table, g.Size))
	}
	if g.Table == TableEval && it.Tokens > 0 && (it.MinVersion != g.Version || it.MaxVersion != g.Version) {
		return reject(fmt.Errorf("%w: item %q: sampled with versions %d to %d, evaluation group %q wants exactly %d",
			ErrInvalid, it.LogID, it.MinVersion, it.MaxVersion, it.Group, g.Version))
	}
	at, taken := slices.BinarySearchFunc(g.Members, it.Member, func(m *pb.Member, n uint32) int { return int(m.Member) - int(n) })
	open := g.Phase == pb.GroupPhase_GROUP_PHASE_RUNNING || g.Phase == pb.GroupPhase_GROUP_PHASE_PENDING
	if taken || !open {
		r.Duplicates++
		if !taken {
			r.Late++
		}
		return AppendResult{Duplicate: true, Closed: !open}, nil
	}
	if busy, err := f.overQuota(r, it); err != nil || busy != nil {
		return orNone(busy), err
	}
	g.Members = slices.Insert(g.Members, at, memberOf(it))
	if err := f.storeItem(r, it); err != nil {
		return AppendResult{}, err
	}
	if !enough(r, g) {
		return AppendResult{}, f.putGroup(r.run, g)
	}
	return AppendResult{Closed: true}, f.complete(r, g, it)
}

func orNone(r *AppendResult) AppendResult {
	if r == nil {
		return AppendResult{}
	}
	return *r
}

// storeItem records an accepted item at the end of its table.
func (f *fold) storeItem(r *runState, it *Item) error {
	seq := r.NextSeq
	r.NextSeq++
	r.Appended++
	if it.failed() {
		r.FailedRollouts++
		r.FailureReasons = countReason(r.FailureReasons, it.Cause)
	}
	return firstError(
		f.charge(r, it),
		f.put(itemKey(it.LogID), &pb.ItemState{Item: itemToPB(it), Seq: seq}),
		f.kv.Set(scanPrefix(it.Run, it.Table).U64(seq), []byte(it.LogID)),
	)
}

// complete closes a group that has all its members; last is the one that came
// last.
func (f *fold) complete(r *runState, g *pb.GroupState, last *Item) error {
	var err error
	if g.Phase == pb.GroupPhase_GROUP_PHASE_RUNNING {
		err = f.takeBack(r, g)
	} else {
		err = f.kv.Delete(queueKeyOf(r.run, g))
	}
	if err != nil {
		return err
	}
	if g.Table == TableEval {
		return f.endEval(r, g, last)
	}
	r.OpenGroups--
	if allMembersFailed(g.Members) {
		return f.drop(r, g, dropAllFailed)
	}
	return f.makeReady(r, g)
}
