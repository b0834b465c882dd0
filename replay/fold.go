package replay

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Apply folds one command into kv. It is a pure function of both: same pairs
// and same command, same writes and same result, on every machine.
//
// Result.Err refuses a command (see [Result]); the error is for a kv that
// failed or holds what the fold did not write, after which the caller must
// discard the writes and stop. Time passes first: whatever expired by the
// command's clock is handled before the command itself, refused or not.
func Apply(kv KV, cmd Command) (Result, error) {
	now := nanos(cmd.Clock())
	if now <= 0 {
		return Result{Err: fmt.Errorf("%w: %T without a clock: Now = %v, want a time after 1970", ErrInvalid, cmd, cmd.Clock())}, nil
	}
	f := &fold{kv: kv, now: now}
	res, err := f.apply(cmd)
	if err != nil {
		if r := (*refusal)(nil); errors.As(err, &r) {
			return Result{Err: r.err}, nil
		}
		return Result{}, fmt.Errorf("replay: apply %T: %w", cmd, err)
	}
	return res, nil
}

// refusal marks an error as the fold's answer, not as a broken store.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }

func refuse(kind error, format string, args ...any) error {
	return &refusal{fmt.Errorf("%w: "+format, append([]any{kind}, args...)...)}
}

// fold is one application: the store, the clock, and the states of runs,
// tables and tenants it has loaded, written back by flush.
type fold struct {
	kv      KV
	now     int64
	runs    []*runState
	tables  []*tableState
	tenants []*tenantState
}

// runState is a loaded run; changes are written by fold.flush.
type runState struct {
	*pb.RunState
	run string
}

func (f *fold) apply(cmd Command) (Result, error) {
	if err := f.expire(); err != nil {
		return Result{}, err
	}
	if err := f.flush(); err != nil {
		return Result{}, err
	}
	res, err := f.dispatch(cmd)
	if err != nil {
		return Result{}, err
	}
	return res, f.flush()
}

func (f *fold) dispatch(cmd Command) (res Result, err error) {
	if err := f.here(runOf(cmd)); err != nil {
		return res, err
	}
	switch c := cmd.(type) {
	case CreateRunCmd:
		err = f.createRun(c.Spec)
	case FinishRunCmd:
		err = f.finishRun(c.Run)
	case TakeTicketsCmd:
		res.Tickets, err = f.takeTickets(c)
	case ReturnTicketCmd:
		err = f.returnTicket(c)
	case AppendItemsCmd:
		res.Append, err = f.appendItems(c.Items)
	case TickCmd:
	case AcquireLeaseCmd:
		res.Lease, res.Blocked, err = f.acquireLease(c.Request)
	case ExtendLeaseCmd:
		err = f.extendLease(c)
	case CommitStepCmd:
		err = f.commitStep(c.Step)
	case ReleaseLeaseCmd:
		err = f.releaseLease(c)
	case RequestEvalCmd:
		err = f.requestEval(c.Request)
	case SetTableCmd:
		res.Version, err = f.setTable(c)
	case InsertGroupsCmd:
		res.Append, err = f.insertGroups(c)
	case UpdatePrioritiesCmd:
		res.Updated, err = f.updatePriorities(c)
	case RemoveGroupsCmd:
		res.Updated, err = f.removeGroups(c)
	case DeleteLogsCmd:
		res.Updated, err = f.deleteLogs(c)
	case RedactLogsCmd:
		res.Updated, err = f.redactLogs(c)
	case DropTableCmd:
		err = f.dropTable(c)
	case ImportLogsCmd:
		res.Append, err = f.importLogs(c)
	case ForgetDeletedCmd:
		res.Updated, err = f.forgetDeleted(c)
	case SetQuotaCmd:
		res.Version, err = f.setQuota(c)
	case SetShardCmd:
		res.Shard, err = f.setShard(c.Shard)
	case PlaceRunCmd:
		res.Placement, err = f.placeRun(c.Placement)
	case MoveRunCmd:
		err = f.moveRun(c)
	case AdoptPairsCmd:
		err = f.adoptPairs(c)
	case DropPairsCmd:
		err = f.dropPairs(c)
	default:
		err = refuse(ErrInvalid, "unknown command %T", cmd)
	}
	return res, err
}

// flush writes the loaded states back and forgets them.
func (f *fold) flush() error {
	if err := f.flushRuns(); err != nil {
		return err
	}
	for _, t := range f.tables {
		if err := f.put(tableKey(t.run, t.name), t.TableState); err != nil {
			return err
		}
	}
	for _, t := range f.tenants {
		if t.TenantState == nil {
			continue
		}
		if err := f.put(tenantKey(t.tenant), t.TenantState); err != nil {
			return err
		}
	}
	f.runs, f.tables, f.tenants = f.runs[:0], f.tables[:0], f.tenants[:0]
	return nil
}

func (f *fold) flushRuns() error {
	for _, r := range f.runs {
		if err := f.put(runKey(r.run), r.RunState); err != nil {
			return err
		}
	}
	return nil
}

// run loads a run to be changed. Commands touch one run (AppendItems and expiry
// a few), so a list will do.
func (f *fold) run(name string) (*runState, error) {
	for _, r := range f.runs {
		if r.run == name {
			return r, nil
		}
	}
	m := new(pb.RunState)
	ok, err := load(f.kv, runKey(name), m)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, refuse(ErrNotFound, "run %q (create it first)", name)
	}
	r := &runState{RunState: m, run: name}
	f.runs = append(f.runs, r)
	return r, nil
}

// load reads the message under k; ok == false when there is none.
func load(kv Reader, k key, m proto.Message) (ok bool, err error) {
	b, ok, err := kv.Get(k)
	if err != nil || !ok {
		return false, err
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return false, fmt.Errorf("state under key %q is not a %T: %w", []byte(k), m, err)
	}
	return true, nil
}

func (f *fold) put(k key, m proto.Message) error {
	b, err := marshal.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode state under key %q: %w", []byte(k), err)
	}
	return f.kv.Set(k, b)
}

// mark sets a key whose presence is all.
func (f *fold) mark(k key) error { return f.kv.Set(k, nil) }

func (f *fold) putGroup(run string, g *pb.GroupState) error {
	return f.put(groupKey(run, g.Group), g)
}

// mustGroup loads a group that another key says exists.
func (f *fold) mustGroup(run, group string) (*pb.GroupState, error) {
	g := new(pb.GroupState)
	ok, err := load(f.kv, groupKey(run, group), g)
	if err == nil && !ok {
		err = fmt.Errorf("run %q lacks the group %q another key names", run, group)
	}
	return g, err
}

// after is the end of a duration from now, without overflow.
func (f *fold) after(d time.Duration) int64 { return endOf(f.now, d) }

func endOf(now int64, d time.Duration) int64 {
	const far = int64(1) << 62
	if int64(d) > far-now {
		return far
	}
	return now + int64(d)
}

// expire handles what has run out by now: leases return their groups untouched,
// tickets go to another worker or close their group, groups of tables that are
// incomplete at their deadline are closed, and tables are swept.
func (f *fold) expire() error {
	type due struct {
		key []byte
		e   *pb.Expiry
	}
	var dues []due
	var bad error
	prefix := keys.New('x')
	end := prefix.U64(uint64(f.now) + 1)
	err := f.kv.Iterate(prefix, nil, func(k, v []byte) bool {
		if string(k) >= string(end) {
			return false
		}
		e := new(pb.Expiry)
		if bad = proto.Unmarshal(v, e); bad != nil {
			return false
		}
		dues = append(dues, due{append([]byte(nil), k...), e})
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	for _, d := range dues {
		r, err := f.run(d.e.Run)
		if err != nil {
			return unexpected(err)
		}
		if r.Moving != pb.RunMove_RUN_MOVE_NONE { // it stands still
			continue
		}
		if d.e.Table != "" {
			if err := f.expireTable(d.key, d.e); err != nil {
				return err
			}
			continue
		}
		if d.e.Lease != 0 {
			l, ok, err := f.lease(r.run, d.e.Lease)
			if err != nil {
				return err
			}
			if ok {
				err = f.endLease(r, l, "")
			} else {
				err = f.kv.Delete(d.key)
			}
			if err != nil {
				return err
			}
			continue
		}
		g, err := f.mustGroup(r.run, d.e.Group)
		if err != nil {
			return err
		}
		end := f.expireTicket
		if g.Twin != "" && string(d.key) == string(expiryKey(g.TwinExpires, d.e.Run, d.e.Group, 0)) {
			end = func(r *runState, g *pb.GroupState) error { return firstError(f.endTwin(r, g), f.putGroup(r.run, g)) }
		}
		if err := end(r, g); err != nil {
			return err
		}
	}
	return nil
}

// unexpected turns a refusal met where state is known to exist into a failure
// of the store.
func unexpected(err error) error {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return fmt.Errorf("broken state: %w", r.err)
	}
	return err
}

func (f *fold) putExpiry(expires int64, e *pb.Expiry) error {
	return f.put(expiryKey(expires, e.Run, e.Group, e.Lease), e)
}

func (f *fold) dropExpiry(expires int64, run, group string, lease uint64) error {
	return f.kv.Delete(expiryKey(expires, run, group, lease))
}

// firstError returns the first error of a sequence of writes.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// expireTable closes a group at its deadline, or sweeps a table.
func (f *fold) expireTable(due []byte, e *pb.Expiry) error {
	if t, ok, err := f.droppedTable(e.Run, e.Table); err != nil {
		return err
	} else if ok && e.Group != "" {
		return f.kv.Delete(due)
	} else if ok {
		return f.clearTable(t)
	}
	t, err := f.mustTable(e.Run, e.Table)
	if err != nil {
		return unexpected(err)
	}
	if e.Group == "" {
		return f.sweep(t)
	}
	g, err := f.mustTableItem(t, e.Group)
	if err != nil {
		return err
	}
	return f.closeGroup(t, g)
}
