package replay

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// runOf is the run that a command belongs to; "" = none, or several.
func runOf(cmd Command) string {
	switch c := cmd.(type) {
	case CreateRunCmd:
		return c.Spec.Run
	case FinishRunCmd:
		return c.Run
	case TakeTicketsCmd:
		return c.Run
	case ReturnTicketCmd:
		return c.Run
	case AcquireLeaseCmd:
		return c.Request.Run
	case ExtendLeaseCmd:
		return c.Run
	case CommitStepCmd:
		return c.Step.Run
	case ReleaseLeaseCmd:
		return c.Run
	case RequestEvalCmd:
		return c.Request.Run
	case SetTableCmd:
		return c.Run
	case InsertGroupsCmd:
		return c.Run
	case UpdatePrioritiesCmd:
		return c.Run
	case RemoveGroupsCmd:
		return c.Run
	case DeleteLogsCmd:
		return c.Run
	case RedactLogsCmd:
		return c.Run
	case DropTableCmd:
		return c.Run
	case ImportLogsCmd:
		return c.Run
	}
	return ""
}

// here refuses commands of a run that is elsewhere or on its way. Of a run that
// never was the command itself says so.
func (f *fold) here(run string) error {
	if run == "" {
		return nil
	}
	r, err := f.run(run)
	if ref := (*refusal)(nil); errors.As(err, &ref) {
		return absent(f.kv, run)
	}
	if err == nil && r.Moving != pb.RunMove_RUN_MOVE_NONE {
		err = refuse(ErrMoved, "run %q is being moved between shards", run)
	}
	return err
}

// absent is ErrMoved, as a refusal, of a run that is not here because it lives in
// another shard.
func absent(kv Reader, run string) error {
	gone := new(pb.Gone)
	if ok, err := load(kv, goneKey(run), gone); err != nil {
		return err
	} else if ok {
		return refuse(ErrMoved, "run %q lives in shard %q", run, gone.To)
	}
	p, err := PlacementOf(kv, run)
	if err == nil && p.Version > 0 && p.Shard != RootShard {
		err = refuse(ErrMoved, "run %q lives in shard %q", run, p.Shard)
	}
	return err
}

// Elsewhere is ErrMoved for a run that is on its way or lives in another shard,
// and nil otherwise, whether there is such a run or not.
func Elsewhere(kv Reader, run string) error {
	r, err := readRun(kv, run)
	switch {
	case errors.Is(err, ErrNotFound):
		err = absent(kv, run)
	case err == nil && r.Moving != pb.RunMove_RUN_MOVE_NONE:
		err = refuse(ErrMoved, "run %q is being moved between shards", run)
	}
	if ref := (*refusal)(nil); errors.As(err, &ref) {
		return ref.err
	}
	return err
}

func (f *fold) moveRun(c MoveRunCmd) error {
	if err := checkID("Run", c.Run); err != nil || c.Move == 0 {
		return refuse(ErrInvalid, "move %d of run %q: %w", c.Move, cut(c.Run, maxID), err)
	}
	gone := new(pb.Gone)
	_, err := load(f.kv, goneKey(c.Run), gone)
	if err != nil {
		return err
	}
	r, err := f.run(c.Run)
	ref := (*refusal)(nil)
	missing := errors.As(err, &ref)
	if err != nil && !missing {
		return err
	}
	if seen := max(gone.GetMove(), moveOf(r)); c.Move < seen {
		return refuse(ErrStale, "move %d of run %q: move %d has begun since", c.Move, c.Run, seen)
	}
	switch c.Step {
	case MoveBegin:
		if !missing && r.Moving != pb.RunMove_RUN_MOVE_IN {
			return refuse(ErrInvalid, "move of run %q: this shard has a run of that name already", c.Run)
		}
		if missing {
			r = &runState{RunState: &pb.RunState{Spec: &pb.RunSpec{Run: c.Run}, Moving: pb.RunMove_RUN_MOVE_IN}, run: c.Run}
			f.runs = append(f.runs, r)
		}
		r.Move = c.Move
		return nil
	case MoveLeave:
		if missing {
			return f.put(goneKey(c.Run), &pb.Gone{Move: c.Move, To: c.To})
		}
		return f.leaveShard(r, c)
	}
	if missing && c.Step == MoveThaw { // never created: from here on it may be
		return f.kv.Delete(goneKey(c.Run))
	}
	if missing {
		return err
	}
	switch {
	case c.Step == MoveFreeze && r.Moving == pb.RunMove_RUN_MOVE_IN:
		return refuse(ErrInvalid, "freeze run %q: it is only arriving here", c.Run)
	case c.Step == MoveFreeze && r.Moving == pb.RunMove_RUN_MOVE_NONE && c.Move == r.Move:
		return refuse(ErrStale, "move %d of run %q is over", c.Move, c.Run)
	case c.Step == MoveFreeze:
		r.Moving = pb.RunMove_RUN_MOVE_OUT
	case c.Step == MoveThaw:
		r.Moving = pb.RunMove_RUN_MOVE_NONE
		if err := firstError(f.kv.Delete(goneKey(c.Run)), f.recount(r.Spec.GetTenant())); err != nil {
			return err
		}
	default:
		return refuse(ErrInvalid, "move of run %q: step %d is unknown", c.Run, c.Step)
	}
	r.Move = c.Move
	return nil
}

func moveOf(r *runState) uint64 {
	if r == nil {
		return 0
	}
	return r.Move
}

// leaveShard forgets a run whose pairs are all dropped.
func (f *fold) leaveShard(r *runState, c MoveRunCmd) error {
	if r.Moving == pb.RunMove_RUN_MOVE_NONE {
		return refuse(ErrInvalid, "run %q cannot leave: it lives here", c.Run)
	}
	for _, tag := range runTags {
		if tag == 'r' {
			continue
		}
		if some, err := hasAny(f.kv, keys.New(tag).Str(c.Run)); err != nil {
			return err
		} else if some {
			return refuse(ErrInvalid, "run %q cannot leave: keys %q of it are here: drop them first", c.Run, string(tag))
		}
	}
	f.runs = slices.DeleteFunc(f.runs, func(x *runState) bool { return x == r })
	return firstError(
		f.kv.Delete(runKey(c.Run)),
		f.put(goneKey(c.Run), &pb.Gone{Move: c.Move, To: c.To}),
		f.recount(r.Spec.GetTenant()),
	)
}

// recount makes a tenant's sums anew from the runs that live here.
func (f *fold) recount(tenant string) error {
	if err := f.foundTenant(tenant); err != nil {
		return err
	}
	t, err := f.tenant(tenant)
	if err != nil || t.TenantState == nil {
		return err
	}
	if err := f.flushRuns(); err != nil { // the count reads them
		return err
	}
	now, err := countTenant(f.kv, tenant)
	if err != nil {
		return err
	}
	t.Logs, t.Bytes, t.Tickets = now.Logs, now.Bytes, now.Tickets
	return nil
}

// moving is a run in the midst of a move.
func (f *fold) moving(run string, move uint64) (*runState, error) {
	r, err := f.run(run)
	if err != nil {
		return nil, err
	}
	if r.Moving == pb.RunMove_RUN_MOVE_NONE || r.Move != move {
		return nil, refuse(ErrStale, "move %d of run %q: the run stands at move %d (%v)", move, run, r.Move, r.Moving)
	}
	return r, nil
}

func (f *fold) adoptPairs(c AdoptPairsCmd) error {
	r, err := f.moving(c.Run, c.Move)
	if err != nil {
		return err
	}
	if r.Moving != pb.RunMove_RUN_MOVE_IN {
		return refuse(ErrInvalid, "run %q does not arrive here", c.Run)
	}
	for _, p := range c.Pairs { // all or none
		if err := f.checkPair(c.Run, p.Key, p.Value); err != nil {
			return err
		}
	}
	for _, p := range c.Pairs {
		if bytes.Equal(p.Key, runKey(c.Run)) {
			m := new(pb.RunState)
			if err := proto.Unmarshal(p.Value, m); err != nil || m.GetSpec().GetRun() != c.Run {
				return refuse(ErrInvalid, "run %q: the state sent is not one of it: %w", c.Run, err)
			}
			m.Move, m.Moving = r.Move, r.Moving
			r.RunState = m
			continue
		}
		if err := f.kv.Set(p.Key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

func (f *fold) dropPairs(c DropPairsCmd) error {
	if _, err := f.moving(c.Run, c.Move); err != nil {
		return err
	}
	for _, k := range c.Keys {
		if err := f.checkPair(c.Run, k, nil); err != nil {
			return err
		}
	}
	for _, k := range c.Keys {
		if bytes.Equal(k, runKey(c.Run)) {
			continue // MoveLeave's
		}
		if err := f.kv.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// runTags are the tags of keys that begin with their run's name.
var runTags = []byte("rcgiqytwshdpevnTUmukC")

// checkPair refuses a key that is not the run's. value is nil where it is to be
// dropped.
func (f *fold) checkPair(run string, k, value []byte) error {
	bad := func(why string) error {
		return refuse(ErrInvalid, "move of run %q: key %q is not of it: %s", run, cut(string(k), maxID), why)
	}
	if len(k) == 0 {
		return bad("empty")
	}
	owner := func(id string) (string, error) {
		s := new(pb.ItemState)
		_, err := load(f.kv, itemKey(id), s)
		return s.GetItem().GetRun(), err
	}
	var id string
	switch {
	case bytes.IndexByte(runTags, k[0]) >= 0:
		if !bytes.HasPrefix(k, keys.New(k[0]).Str(run)) {
			return bad("another run's")
		}
		return nil
	case k[0] == 'x' && len(k) > 9:
		if !bytes.HasPrefix(k[9:], keys.New('x').Str(run)[1:]) {
			return bad("another run's")
		}
		return nil
	case k[0] == 'l' || k[0] == 'b':
		id = keys.Unescape(k[1:])
	case k[0] == 'D' && len(k) > 9:
		id = keys.Unescape(k[9:])
	default:
		return bad("unknown")
	}
	if id == "" {
		return bad("it names no log")
	}
	if k[0] == 'l' && value != nil {
		s := new(pb.ItemState)
		if err := proto.Unmarshal(value, s); err != nil || s.GetItem().GetRun() != run || s.GetItem().GetLogId() != id {
			return bad("its value is not of that log and run")
		}
	}
	of, err := owner(id)
	if err == nil && of != "" && of != run {
		err = bad(fmt.Sprintf("log %q belongs to run %q here", id, of))
	}
	return err
}
