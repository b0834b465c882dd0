package replay

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// Command is one entry of the replicated log: one of the *Cmd types. Now is the
// proposer's clock, the only one the fold knows; it must be after 1970.
type Command interface {
	// Clock is the command's Now.
	Clock() time.Time
	toPB() *pb.Command
}

// CreateRunCmd registers a run. Idempotent for an equal spec.
type CreateRunCmd struct {
	Now  time.Time
	Spec RunSpec
}

// FinishRunCmd ends a run: it gives no more tickets and no more leases.
type FinishRunCmd struct {
	Now time.Time
	Run string
}

// TakeTicketsCmd hands up to N groups to Worker. When RequestID is that of the
// worker's last request, the reply is repeated (minus groups it no longer
// holds) and nothing is handed out twice to a retry; "" = no retry protection.
type TakeTicketsCmd struct {
	Now       time.Time
	Run       string
	Worker    string
	N         int
	RequestID string
}

// ReturnTicketCmd gives Group back without using up an attempt. With Group ""
// it gives up every group of Worker, which has lost them in a crash: those move
// to their next attempt, or are closed after the last.
type ReturnTicketCmd struct {
	Now    time.Time
	Run    string
	Group  string
	Worker string
}

// AppendItemsCmd commits items whose bytes are durable on a majority. Items of
// different runs may share one command.
type AppendItemsCmd struct {
	Now   time.Time
	Items []Item
}

// TickCmd lets time pass: whatever has expired by Now is returned or closed.
// Every other command does the same first, so a tick is needed only when
// nothing else happens.
type TickCmd struct {
	Now time.Time
}

// AcquireLeaseCmd leases groups; LeaseRequest.Wait is the proposer's business.
type AcquireLeaseCmd struct {
	Now     time.Time
	Request LeaseRequest
}

// ExtendLeaseCmd moves a live lease's end to Now + TTL.
type ExtendLeaseCmd struct {
	Now   time.Time
	Run   string
	Lease uint64
	TTL   time.Duration
}

// CommitStepCmd consumes a lease and publishes a policy.
type CommitStepCmd struct {
	Now  time.Time
	Step StepRecord
}

// ReleaseLeaseCmd returns a lease's groups, or drops them for the reason Drop.
type ReleaseLeaseCmd struct {
	Now   time.Time
	Run   string
	Lease uint64
	Drop  string
}

// RequestEvalCmd asks for an evaluation.
type RequestEvalCmd struct {
	Now     time.Time
	Request EvalRequest
}

// SetTableCmd creates a table or changes its configuration, which was Version
// before (0 = there was none). An equal configuration is a success that changes
// nothing.
type SetTableCmd struct {
	Now     time.Time
	Run     string
	Table   string
	Config  table.Config
	Version uint64
}

// InsertGroupsCmd puts stored logs into a table.
type InsertGroupsCmd struct {
	Now    time.Time
	Run    string
	Table  string
	Groups []GroupInsert
}

// UpdatePrioritiesCmd sets priorities.
type UpdatePrioritiesCmd struct {
	Now     time.Time
	Run     string
	Table   string
	Updates []GroupPriority
}

// RemoveGroupsCmd takes groups out of a table, counted under Reason.
type RemoveGroupsCmd struct {
	Now    time.Time
	Run    string
	Table  string
	Groups []string
	Reason string
}

// DeleteLogsCmd forgets logs; groups that leave a table with them are counted
// under Reason.
type DeleteLogsCmd struct {
	Now    time.Time
	Run    string
	LogIDs []string
	Reason string
}

// SetQuotaCmd replaces a tenant's quota, which was Version before (0 = there was
// none). An equal quota is a success that changes nothing.
type SetQuotaCmd struct {
	Now     time.Time
	Tenant  string
	Quota   Quota
	Version uint64
}

func (c CreateRunCmd) Clock() time.Time    { return c.Now }
func (c FinishRunCmd) Clock() time.Time    { return c.Now }
func (c TakeTicketsCmd) Clock() time.Time  { return c.Now }
func (c ReturnTicketCmd) Clock() time.Time { return c.Now }
func (c AppendItemsCmd) Clock() time.Time  { return c.Now }
func (c TickCmd) Clock() time.Time         { return c.Now }
func (c AcquireLeaseCmd) Clock() time.Time { return c.Now }
func (c ExtendLeaseCmd) Clock() time.Time  { return c.Now }
func (c CommitStepCmd) Clock() time.Time   { return c.Now }
func (c ReleaseLeaseCmd) Clock() time.Time { return c.Now }
func (c RequestEvalCmd) Clock() time.Time  { return c.Now }

func (c SetTableCmd) Clock() time.Time         { return c.Now }
func (c InsertGroupsCmd) Clock() time.Time     { return c.Now }
func (c UpdatePrioritiesCmd) Clock() time.Time { return c.Now }
func (c RemoveGroupsCmd) Clock() time.Time     { return c.Now }
func (c DeleteLogsCmd) Clock() time.Time       { return c.Now }
func (c SetQuotaCmd) Clock() time.Time         { return c.Now }

func (c CreateRunCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_CreateRun{CreateRun: &pb.CreateRun{Spec: specToPB(c.Spec)}}}
}
func (c FinishRunCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_FinishRun{FinishRun: &pb.FinishRun{Run: c.Run}}}
}
func (c TakeTicketsCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_TakeTickets{TakeTickets: &pb.TakeTickets{
		Run: c.Run, Worker: c.Worker, N: clampU32(c.N), RequestId: c.RequestID}}}
}
func (c ReturnTicketCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_ReturnTicket{ReturnTicket: &pb.ReturnTicket{
		Run: c.Run, Group: c.Group, Worker: c.Worker}}}
}
func (c AppendItemsCmd) toPB() *pb.Command {
	m := &pb.AppendItems{Items: make([]*pb.Item, len(c.Items))}
	for i := range c.Items {
		m.Items[i] = itemToPB(&c.Items[i])
	}
	return &pb.Command{Op: &pb.Command_AppendItems{AppendItems: m}}
}
func (c TickCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_Tick{Tick: &pb.Tick{}}}
}
func (c AcquireLeaseCmd) toPB() *pb.Command {
	r := c.Request
	return &pb.Command{Op: &pb.Command_AcquireLease{AcquireLease: &pb.AcquireLease{
		Run: r.Run, Holder: r.Holder, Groups: clampU32(r.Groups),
		LearnerVersion: r.LearnerVersion, Ttl: int64(r.TTL), Table: r.Table, AtLeast: clampU32(r.AtLeast)}}}
}
func (c ExtendLeaseCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_ExtendLease{ExtendLease: &pb.ExtendLease{
		Run: c.Run, Lease: c.Lease, Ttl: int64(c.TTL)}}}
}
func (c CommitStepCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_CommitStep{CommitStep: &pb.CommitStep{Step: stepToPB(&c.Step)}}}
}
func (c ReleaseLeaseCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_ReleaseLease{ReleaseLease: &pb.ReleaseLease{
		Run: c.Run, Lease: c.Lease, Drop: c.Drop}}}
}
func (c RequestEvalCmd) toPB() *pb.Command {
	r := c.Request
	return &pb.Command{Op: &pb.Command_RequestEval{RequestEval: &pb.RequestEval{
		Run: r.Run, Version: r.Version, From: r.From, Count: r.Count}}}
}

func (c SetQuotaCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_SetQuota{SetQuota: &pb.SetQuota{Tenant: c.Tenant, Quota: quotaToPB(c.Quota), Version: c.Version}}}
}

// clampU32 keeps a count in range: the fold refuses 0 and its own upper bounds.
func clampU32(n int) uint32 {
	return uint32(min(max(n, 0), 1<<31-1))
}

// EncodeCommand encodes deterministically.
func EncodeCommand(c Command) ([]byte, error) {
	if t, ok := c.(SetTableCmd); ok {
		if _, err := t.Config.Encode(); err != nil { // a number that is not finite
			return nil, fmt.Errorf("%w: encode %T: %w", ErrInvalid, c, err)
		}
	}
	m := c.toPB()
	m.Now = nanos(c.Clock())
	b, err := marshal.Marshal(m)
	if err != nil { // a string that is not UTF-8
		return nil, fmt.Errorf("%w: encode %T: %w", ErrInvalid, c, err)
	}
	return b, nil
}

// DecodeCommand is the inverse of EncodeCommand. Errors wrap ErrInvalid.
func DecodeCommand(b []byte) (Command, error) {
	m := new(pb.Command)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: decode command: %w", ErrInvalid, err)
	}
	now := fromNanos(m.Now)
	switch op := m.Op.(type) {
	case *pb.Command_CreateRun:
		return CreateRunCmd{now, specFromPB(op.CreateRun.GetSpec())}, nil
	case *pb.Command_FinishRun:
		return FinishRunCmd{now, op.FinishRun.GetRun()}, nil
	case *pb.Command_TakeTickets:
		t := op.TakeTickets
		return TakeTicketsCmd{now, t.GetRun(), t.GetWorker(), int(t.GetN()), t.GetRequestId()}, nil
	case *pb.Command_ReturnTicket:
		t := op.ReturnTicket
		return ReturnTicketCmd{now, t.GetRun(), t.GetGroup(), t.GetWorker()}, nil
	case *pb.Command_AppendItems:
		items := make([]Item, len(op.AppendItems.GetItems()))
		for i, it := range op.AppendItems.GetItems() {
			items[i] = itemFromPB(it)
		}
		return AppendItemsCmd{now, items}, nil
	case *pb.Command_Tick:
		return TickCmd{now}, nil
	case *pb.Command_AcquireLease:
		l := op.AcquireLease
		return AcquireLeaseCmd{now, LeaseRequest{Run: l.GetRun(), Holder: l.GetHolder(), Groups: int(l.GetGroups()),
			LearnerVersion: l.GetLearnerVersion(), TTL: time.Duration(l.GetTtl()), Table: l.GetTable(), AtLeast: int(l.GetAtLeast())}}, nil
	case *pb.Command_ExtendLease:
		l := op.ExtendLease
		return ExtendLeaseCmd{now, l.GetRun(), l.GetLease(), time.Duration(l.GetTtl())}, nil
	case *pb.Command_CommitStep:
		return CommitStepCmd{now, stepFromPB(op.CommitStep.GetStep())}, nil
	case *pb.Command_ReleaseLease:
		l := op.ReleaseLease
		return ReleaseLeaseCmd{now, l.GetRun(), l.GetLease(), l.GetDrop()}, nil
	case *pb.Command_RequestEval:
		e := op.RequestEval
		return RequestEvalCmd{now, EvalRequest{Run: e.GetRun(), Version: e.GetVersion(), From: e.GetFrom(), Count: e.GetCount()}}, nil
	case *pb.Command_SetTable:
		return setTableFromPB(now, op.SetTable)
	case *pb.Command_InsertGroups:
		return insertFromPB(now, op.InsertGroups), nil
	case *pb.Command_UpdatePriorities:
		return updatesFromPB(now, op.UpdatePriorities), nil
	case *pb.Command_RemoveGroups:
		m := op.RemoveGroups
		return RemoveGroupsCmd{now, m.GetRun(), m.GetTable(), m.GetGroups(), m.GetReason()}, nil
	case *pb.Command_DeleteLogs:
		m := op.DeleteLogs
		return DeleteLogsCmd{now, m.GetRun(), m.GetLogIds(), m.GetReason()}, nil
	case *pb.Command_SetQuota:
		m := op.SetQuota
		return SetQuotaCmd{now, m.GetTenant(), quotaFromPB(m.GetQuota()), m.GetVersion()}, nil
	}
	if c := operatorCommand(now, m); c != nil {
		return c, nil
	}
	if c := shardCommand(now, m); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: decode command: unknown operation (a newer version wrote it; upgrade this node)", ErrInvalid)
}
