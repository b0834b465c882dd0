package replay

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Queries read the fold's state. They change nothing and wait for nothing.

// Runs lists the runs in order of their names.
func Runs(kv Reader) ([]string, error) {
	var out []string
	prefix := keys.New('r')
	err := kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		out = append(out, keys.Unescape(k[len(prefix):]))
		return true
	})
	return out, err
}

func readRun(kv Reader, run string) (*pb.RunState, error) {
	r := new(pb.RunState)
	ok, err := load(kv, runKey(run), r)
	if err == nil && !ok {
		err = fmt.Errorf("%w: run %q", ErrNotFound, run)
	}
	return r, err
}

// readSpec puts the spec of a run together with its config.
func readSpec(kv Reader, r *pb.RunState) (RunSpec, error) {
	spec := specFromPB(r.Spec)
	config, _, err := kv.Get(configKey(spec.Run))
	if len(config) > 0 {
		spec.Config = append([]byte(nil), config...)
	}
	return spec, err
}

// Status sums up a run.
func Status(kv Reader, run string) (RunStatus, error) {
	r, err := readRun(kv, run)
	if err != nil {
		return RunStatus{}, err
	}
	spec, err := readSpec(kv, r)
	if err != nil {
		return RunStatus{}, err
	}
	s := RunStatus{
		Spec: spec, ReadyGroups: int(r.ReadyGroups), RunningGroups: int(r.OpenGroups),
		LeasedGroups: int(r.LeasedGroups), ConsumedGroups: int(r.ConsumedGroups), DroppedGroups: int(r.DroppedGroups),
		ShrunkGroups: int(r.ShrunkGroups), Appended: int(r.Appended), Duplicates: int(r.Duplicates), LateLogs: int(r.Late),
		RejectedLogs: int(r.Rejected), DeletedLogs: int(r.Deleted), FailedRollouts: int(r.FailedRollouts), FailureReasons: counts(r.FailureReasons),
		DropReasons: counts(r.DropReasons), StalenessCounts: map[uint64]int{}, Finished: r.Finished,
	}
	for _, c := range r.Staleness {
		s.StalenessCounts[c.Lag] = int(c.N)
	}
	if s.Latest, err = PolicyAt(kv, run, r.LatestVersion); err != nil {
		return RunStatus{}, err
	}
	if r.HasStep {
		last, err := step(kv, run, r.LastStep)
		if err != nil {
			return RunStatus{}, err
		}
		s.LastStep = &last
	}
	return s, nil
}

func counts(in []*pb.Count) map[string]int {
	out := make(map[string]int, len(in))
	for _, c := range in {
		out[c.Key] = int(c.N)
	}
	return out
}

// Step returns a committed step.
func Step(kv Reader, run string, n uint64) (StepRecord, error) {
	if _, err := readRun(kv, run); err != nil {
		return StepRecord{}, err
	}
	return step(kv, run, n)
}

func step(kv Reader, run string, n uint64) (StepRecord, error) {
	m := new(pb.StepRecord)
	ok, err := load(kv, stepKey(run, n), m)
	if err == nil && !ok {
		err = fmt.Errorf("%w: step %d of run %q", ErrNotFound, n, run)
	}
	return stepFromPB(m), err
}

// Latest returns the newest policy of a run.
func Latest(kv Reader, run string) (Policy, error) {
	r, err := readRun(kv, run)
	if err != nil {
		return Policy{}, err
	}
	return PolicyAt(kv, run, r.LatestVersion)
}

// PolicyAt returns one published policy.
func PolicyAt(kv Reader, run string, version uint64) (Policy, error) {
	m := new(pb.Policy)
	ok, err := load(kv, policyKey(run, version), m)
	if err == nil && !ok {
		err = fmt.Errorf("%w: policy version %d of run %q", ErrNotFound, version, run)
	}
	return policyFromPB(m), err
}

// EvalOf returns how far an evaluation got.
func EvalOf(kv Reader, run string, version uint64) (EvalStatus, error) {
	e := new(pb.EvalState)
	ok, err := load(kv, evalKey(run, version), e)
	if err == nil && !ok {
		err = fmt.Errorf("%w: evaluation of version %d of run %q", ErrNotFound, version, run)
	}
	if err != nil {
		return EvalStatus{}, err
	}
	s := EvalStatus{Requested: int(e.Count), Done: int(e.Done), Failed: int(e.Failed), Scored: int(e.Scored)}
	if e.Scored > 0 {
		s.MeanReward = e.RewardSum / float64(e.Scored)
		s.Success = float64(e.Succeeded) / float64(e.Scored)
	}
	var ids []string
	err = kv.Iterate(evalLogPrefix(run, version), nil, func(_, v []byte) bool {
		ids = append(ids, string(v))
		return true
	})
	if err != nil {
		return EvalStatus{}, err
	}
	s.Items, err = Items(kv, ids)
	return s, err
}

// Items looks up committed items in the order asked; an unknown id is
// ErrNotFound.
func Items(kv Reader, logIDs []string) ([]Item, error) {
	out := make([]Item, 0, len(logIDs))
	for _, id := range logIDs {
		s, err := loadItem(kv, id)
		if err != nil {
			return nil, err
		}
		out = append(out, itemFromPB(s.Item))
	}
	return out, nil
}

// ScanItems lists items of a table in the order they were accepted, after the
// log the cursor names ("" = from the first). The next cursor is "" when fewer
// than limit were left.
func ScanItems(kv Reader, run, table, cursor string, limit int) ([]Item, string, error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("%w: scan of run %q: limit = %d, want at least 1", ErrInvalid, run, limit)
	}
	if _, err := readRun(kv, run); err != nil {
		return nil, "", err
	}
	prefix := scanPrefix(run, table)
	from := prefix
	if cursor != "" {
		s := new(pb.ItemState)
		ok, err := load(kv, itemKey(cursor), s)
		if err != nil {
			return nil, "", err
		}
		if !ok || s.Item.Run != run || s.Item.Table != table {
			return nil, "", fmt.Errorf("%w: cursor %q is no log of run %q, table %q", ErrNotFound, cursor, run, table)
		}
		from = prefix.U64(s.Seq + 1)
	}
	var ids []string
	err := kv.Iterate(prefix, from, func(_, v []byte) bool {
		ids = append(ids, string(v))
		return len(ids) < limit
	})
	if err != nil {
		return nil, "", err
	}
	items, err := Items(kv, ids)
	next := ""
	if len(ids) == limit {
		next = ids[len(ids)-1]
	}
	return items, next, err
}

// HasTickets says whether TakeTickets would hand something out now, so that
// waiting costs no log entries. Tickets about to expire don't count.
func HasTickets(kv Reader, run, worker string, now time.Time) (bool, error) {
	r, err := readRun(kv, run)
	if err != nil || r.Finished {
		return false, err
	}
	t := new(pb.TenantState)
	if ok, err := load(kv, tenantKey(r.Spec.GetTenant()), t); err != nil || ok && ticketsFull(t) {
		return false, err
	}
	if r.OpenGroups+r.ReadyGroups+r.LeasedGroups < capacity(r.Spec) {
		return true, nil
	}
	for _, prefix := range []key{queuePrefix(run, classEval), evalOpenPrefix(run), queuePrefix(run, classTrain)} {
		if some, err := hasAny(kv, prefix); err != nil || some {
			return some, err
		}
	}
	g, err := straggler(kv, r, run, worker, nanos(now))
	return g != nil, err
}

// ReadyFor says whether a lease request may succeed now: whether enough groups
// are ready, counting those of the holder's earlier lease. Some of them may
// still turn out stale.
func ReadyFor(kv Reader, q LeaseRequest) (bool, error) {
	r, err := readRun(kv, q.Run)
	if err != nil {
		return false, err
	}
	if q.Table != "" && q.Table != TableTrain {
		why, err := Blocked(kv, q)
		return err == nil && (r.Finished || why == ""), err
	}
	ready := r.ReadyGroups
	if b, ok, err := kv.Get(holderKey(q.Run, q.Holder, "")); err != nil {
		return false, err
	} else if ok && len(b) == 8 {
		l := new(pb.LeaseState)
		if _, err := load(kv, leaseKey(q.Run, versionOf(b)), l); err != nil {
			return false, err
		}
		ready += uint64(len(l.Groups))
	}
	return r.Finished || ready >= uint64(max(q.Groups, 1)), nil
}

// NextExpiry returns the Unix nanoseconds at which a ticket or lease runs out
// next, 0 when none is held: when a tick is due.
func NextExpiry(kv Reader) (int64, error) {
	var at int64
	prefix := keys.New('x')
	err := kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		at = int64(versionOf(k[:len(prefix)+8]))
		return false
	})
	return at, err
}

// Blobs returns the blob digests the state refers to, base digests included:
// live is what must be kept, expired the checkpoints of steps that their run no
// longer keeps (RunSpec.KeepCheckpoints).
func Blobs(kv Reader) (live, expired map[string]bool, err error) {
	live, expired = map[string]bool{}, map[string]bool{}
	err = eachBlob(kv, func(digest string, keep bool) {
		if keep {
			live[digest] = true
		} else {
			expired[digest] = true
		}
	})
	err = errors.Join(err, eachRun(kv, func(r *pb.RunState) { live[r.GetSpec().GetBaseDigest()] = true }))
	delete(live, "")
	for d := range live {
		delete(expired, d)
	}
	return live, expired, err
}

// eachBlob calls fn for the start adapters of all runs and the adapters and
// checkpoints of all steps; keep says whether this step keeps it.
func eachBlob(kv Reader, fn func(digest string, keep bool)) error {
	some := func(digest string, keep bool) {
		if digest != "" {
			fn(digest, keep)
		}
	}
	oldest := map[string]uint64{} // step of a run whose checkpoints are kept
	err := eachRun(kv, func(r *pb.RunState) {
		some(r.GetSpec().GetStartAdapter(), true)
		for _, d := range r.GetSpec().GetBlobs() {
			some(d, true)
		}
		if n := uint64(r.GetSpec().GetKeepCheckpoints()); n > 0 && r.LastStep >= n {
			oldest[r.GetSpec().GetRun()] = r.LastStep - n + 1
		}
	})
	var bad error
	return errors.Join(err, kv.Iterate(keys.New('d'), nil, func(_, v []byte) bool {
		m := new(pb.StepRecord)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		keep := m.Step >= oldest[m.Run]
		some(m.PrevCheckpoint, keep)
		some(m.Checkpoint, keep)
		some(m.Adapter, true)
		return true
	}), bad)
}

// eachRun calls fn with the state of every run, without its configuration.
func eachRun(kv Reader, fn func(*pb.RunState)) error {
	var bad error
	err := kv.Iterate(keys.New('r'), nil, func(_, v []byte) bool {
		m := new(pb.RunState)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		fn(m)
		return true
	})
	return errors.Join(err, bad)
}

func hasAny(kv Reader, prefix []byte) (bool, error) {
	some := false
	err := kv.Iterate(prefix, nil, func(_, _ []byte) bool {
		some = true
		return false
	})
	return some, err
}
