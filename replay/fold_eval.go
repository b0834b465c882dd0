package replay

import (
	"fmt"
	"math"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// requestEval opens an evaluation; its groups are made as workers take them.
func (f *fold) requestEval(q EvalRequest) error {
	r, err := f.run(q.Run)
	if err != nil {
		return err
	}
	if q.Count < 1 || q.Count > maxEvalCount || q.From > math.MaxUint64-uint64(q.Count) {
		return refuse(ErrInvalid, "evaluation of run %q: From = %d, Count = %d, want 1 to %d tasks", q.Run, q.From, q.Count, maxEvalCount)
	}
	if q.Version > r.LatestVersion {
		return refuse(ErrInvalid, "evaluation of run %q: Version = %d, the latest published policy is %d", q.Run, q.Version, r.LatestVersion)
	}
	old := new(pb.EvalState)
	ok, err := load(f.kv, evalKey(q.Run, q.Version), old)
	if err != nil {
		return err
	}
	if ok {
		if old.From == q.From && old.Count == q.Count {
			return nil
		}
		return refuse(ErrInvalid, "evaluation of run %q at version %d exists with From = %d, Count = %d", q.Run, q.Version, old.From, old.Count)
	}
	if r.Finished {
		return refuse(ErrInvalid, "evaluation of run %q: the run is finished (evaluate before finishing)", q.Run)
	}
	return firstError(
		f.put(evalKey(q.Run, q.Version), &pb.EvalState{Version: q.Version, From: q.From, Count: q.Count, Next: q.From}),
		f.mark(evalOpenKey(q.Run, q.Version)),
	)
}

// newEvalGroup makes the next group of the oldest evaluation that has one left.
func (f *fold) newEvalGroup(r *runState) (*pb.GroupState, error) {
	prefix := evalOpenPrefix(r.run)
	var at key
	err := f.kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		at = append(at, k...)
		return false
	})
	if err != nil || at == nil {
		return nil, err
	}
	e, err := f.mustEval(r.run, versionOf(at))
	if err != nil {
		return nil, err
	}
	g := &pb.GroupState{
		Group: fmt.Sprintf("%s/eval/%d/%d", r.run, e.Version, e.Next), Table: TableEval,
		Index: e.Next, Size: 1, Attempt: 1, Version: e.Version,
	}
	e.Next++
	if e.Next == e.From+uint64(e.Count) {
		if err := f.kv.Delete(at); err != nil {
			return nil, err
		}
	}
	return g, f.put(evalKey(r.run, e.Version), e)
}

func (f *fold) mustEval(run string, version uint64) (*pb.EvalState, error) {
	e := new(pb.EvalState)
	ok, err := load(f.kv, evalKey(run, version), e)
	if err == nil && !ok {
		err = fmt.Errorf("run %q lacks the evaluation of version %d another key names", run, version)
	}
	return e, err
}

// endEval closes an evaluation group with its log, or without one after the
// last attempt.
func (f *fold) endEval(r *runState, g *pb.GroupState, it *Item) error {
	e, err := f.mustEval(r.run, g.Version)
	if err != nil {
		return err
	}
	e.Done++
	g.Phase = pb.GroupPhase_GROUP_PHASE_CONSUMED
	switch {
	case it == nil:
		e.Failed++
		g.Phase = pb.GroupPhase_GROUP_PHASE_DROPPED
	case it.failed():
		e.Failed++
	case it.HasReward:
		e.Scored++
		e.RewardSum += it.Reward
		if it.Reward >= 1 {
			e.Succeeded++
		}
	}
	if it != nil {
		if err := f.kv.Set(evalLogKey(r.run, g.Version, g.Index), []byte(it.LogID)); err != nil {
			return err
		}
	}
	return firstError(f.putGroup(r.run, g), f.put(evalKey(r.run, g.Version), e))
}
