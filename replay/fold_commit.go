package replay

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// commitStep consumes a lease, records the step and publishes its policy.
func (f *fold) commitStep(s StepRecord) error {
	r, err := f.run(s.Run)
	if err != nil {
		return err
	}
	old := new(pb.StepRecord)
	done, err := load(f.kv, stepKey(s.Run, s.Step), old)
	if err != nil {
		return err
	}
	if done {
		if sameStep(stepFromPB(old), s) {
			return nil
		}
		return refuse(ErrStale, "step %d of run %q is already committed, by lease %d (reload the last checkpoint)", s.Step, s.Run, old.Lease)
	}
	if s.Lease == 0 {
		return f.steer(r, s)
	}
	l, err := f.liveLease(s.Run, s.Lease)
	if err != nil {
		return err
	}
	members, err := f.checkStep(r, l, s)
	if err != nil {
		return err
	}

	if err := f.forget(r, l); err != nil {
		return err
	}
	trained := map[string]bool{}
	for _, id := range s.LogIDs {
		trained[id] = true
	}
	for _, m := range members {
		if trained[m.LogId] && m.Tokens > 0 {
			r.Staleness = countLag(r.Staleness, l.LearnerVersion-m.MinVersion)
		}
	}
	if err := f.consume(r, l); err != nil {
		return err
	}
	return f.publish(r, s)
}

// steer publishes a policy that no lease produced: a rollback to an earlier
// one. Tokens of the versions before it are not trained any more: they are those
// of a policy that was left.
func (f *fold) steer(r *runState, s StepRecord) error {
	if len(s.LogIDs) > 0 || len(s.Groups) > 0 {
		return refuse(ErrInvalid, "step %d of run %q: without a lease it trains nothing, but it names %d logs and %d groups", s.Step, s.Run, len(s.LogIDs), len(s.Groups))
	}
	if !r.HasStep || r.Finished {
		return refuse(ErrStale, "step %d of run %q: only a run that has steps and is not finished can be rolled back, which is what lease 0 asks for", s.Step, s.Run)
	}
	if s.Version != r.LatestVersion+1 {
		return refuse(ErrStale, "step %d of run %q: Version = %d, the latest policy is %d", s.Step, s.Run, s.Version, r.LatestVersion)
	}
	if err := f.checkNext(r, s); err != nil {
		return err
	}
	r.Floor = s.Version
	return f.publish(r, s)
}

// publish records a step and its policy.
func (f *fold) publish(r *runState, s StepRecord) error {
	if s.Committed.IsZero() {
		s.Committed = fromNanos(f.now)
	}
	r.LatestVersion, r.HasStep, r.LastStep = s.Version, true, s.Step
	return firstError(
		f.put(stepKey(s.Run, s.Step), stepToPB(&s)),
		f.put(policyKey(s.Run, s.Version), &pb.Policy{Run: s.Run, Version: s.Version, Adapter: s.Adapter, Step: s.Step}),
	)
}

// checkNext refuses a record that does not follow the run's last step.
func (f *fold) checkNext(r *runState, s StepRecord) error {
	if r.HasStep {
		last, err := step(f.kv, s.Run, r.LastStep)
		if err != nil {
			return unexpected(err)
		}
		if s.Step <= last.Step {
			return refuse(ErrStale, "step %d of run %q: the last step is %d", s.Step, s.Run, last.Step)
		}
		if s.PrevCheckpoint != last.Checkpoint {
			return refuse(ErrStale, "step %d of run %q: PrevCheckpoint = %q, step %d produced %q (reload the last checkpoint)",
				s.Step, s.Run, s.PrevCheckpoint, last.Step, last.Checkpoint)
		}
	}
	if err := errors.Join(checkID("Adapter", s.Adapter), checkID("Checkpoint", s.Checkpoint)); err != nil {
		return refuse(ErrInvalid, "step %d of run %q: %w", s.Step, s.Run, err)
	}
	if n := proto.Size(stepToPB(&s)); n > maxStepBytes {
		return refuse(ErrInvalid, "step %d of run %q: record of %d bytes, want at most %d (fewer groups a step, shorter ids)", s.Step, s.Run, n, maxStepBytes)
	}
	return nil
}

// checkStep refuses a step that is not the next of its run, or names what its
// lease does not hold. It returns the members of the lease's groups.
func (f *fold) checkStep(r *runState, l *pb.LeaseState, s StepRecord) ([]*pb.Member, error) {
	if s.Version != r.LatestVersion+1 || s.Version != l.LearnerVersion+1 {
		return nil, refuse(ErrStale, "step %d of run %q: Version = %d with a lease at version %d, the latest policy is %d",
			s.Step, s.Run, s.Version, l.LearnerVersion, r.LatestVersion)
	}
	if err := f.checkNext(r, s); err != nil {
		return nil, err
	}
	members, err := f.leasedMembers(r, l)
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, m := range members {
		held[m.LogId] = true
	}
	for _, id := range s.LogIDs {
		if !held[id] {
			return nil, refuse(ErrInvalid, "step %d of run %q: log %q is not in lease %d, or is listed twice", s.Step, s.Run, id, l.Id)
		}
		delete(held, id)
	}
	for i, name := range s.Groups {
		if !slices.Contains(l.Groups, name) || slices.Contains(s.Groups[:i], name) {
			return nil, refuse(ErrInvalid, "step %d of run %q: group %q is not in lease %d, or is listed twice", s.Step, s.Run, name, l.Id)
		}
	}
	return members, nil
}

// leasedMembers lists the members of a lease's groups.
func (f *fold) leasedMembers(r *runState, l *pb.LeaseState) (out []*pb.Member, err error) {
	if l.Table == "" {
		for _, name := range l.Groups {
			g, err := f.mustGroup(r.run, name)
			if err != nil {
				return nil, err
			}
			out = append(out, g.Members...)
		}
		return out, nil
	}
	t, err := f.mustTable(r.run, l.Table)
	if err != nil {
		return nil, unexpected(err)
	}
	for _, name := range l.Groups {
		g, err := f.mustTableItem(t, name)
		if err != nil {
			return nil, err
		}
		out = append(out, g.Members...)
	}
	return out, nil
}

// consume counts a lease's groups as trained. Those of train are final; a
// table's go on until their MaxTimesSampled.
func (f *fold) consume(r *runState, l *pb.LeaseState) error {
	if l.Table == "" {
		for _, name := range l.Groups {
			g, err := f.mustGroup(r.run, name)
			if err != nil {
				return err
			}
			if err := f.learnTask(r, g); err != nil {
				return err
			}
			g.Phase = pb.GroupPhase_GROUP_PHASE_CONSUMED
			r.ConsumedGroups++
			if err := firstError(f.putGroup(r.run, g), f.collectTrain(r, g, table.CollectFinished)); err != nil {
				return err
			}
		}
		return nil
	}
	t, err := f.mustTable(r.run, l.Table)
	if err != nil {
		return unexpected(err)
	}
	for _, name := range l.Groups {
		if err := f.consumeGroup(t, name); err != nil {
			return err
		}
	}
	return nil
}

// sameStep says whether two records are one decision: metrics and the time of
// commit don't count.
func sameStep(a, b StepRecord) bool {
	return a.Run == b.Run && a.Step == b.Step && a.Version == b.Version && a.Lease == b.Lease &&
		slices.Equal(a.LogIDs, b.LogIDs) && slices.Equal(a.Groups, b.Groups) &&
		a.PrevCheckpoint == b.PrevCheckpoint && a.Checkpoint == b.Checkpoint && a.Adapter == b.Adapter
}
