package replay

import (
	"time"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// RedactLogsCmd puts redacted twins in the place of logs. The twins' bytes are
// durable on a majority.
type RedactLogsCmd struct {
	Now    time.Time
	Run    string
	Logs   []Redaction
	Reason string
}

// Redaction says which log gets which twin.
type Redaction struct {
	LogID string
	// OldDigest is that of the bytes the twin was made of: another one by now
	// means that the log was redacted meanwhile.
	OldDigest string
	Digest    string // of the twin
	Size      uint32 // of the twin, bytes
}

// DropTableCmd takes a configured table away. The logs stay.
type DropTableCmd struct {
	Now   time.Time
	Run   string
	Table string
}

// ImportLogsCmd stores logs and groups as they were elsewhere. The bytes of the
// logs are durable on a majority.
type ImportLogsCmd struct {
	Now    time.Time
	Run    string
	Items  []Item
	Groups []ImportGroup
	// Policy is the newest of the run they come from. A run that has committed
	// no step takes its number over, so that the logs' versions mean something.
	Policy Policy
}

// ForgetDeletedCmd drops up to Limit ids of logs that were deleted before a
// moment: from then on a late copy of one would be stored.
type ForgetDeletedCmd struct {
	Now    time.Time
	Before time.Time
	Limit  int
}

func (c RedactLogsCmd) Clock() time.Time    { return c.Now }
func (c DropTableCmd) Clock() time.Time     { return c.Now }
func (c ImportLogsCmd) Clock() time.Time    { return c.Now }
func (c ForgetDeletedCmd) Clock() time.Time { return c.Now }

func (c RedactLogsCmd) toPB() *pb.Command {
	m := &pb.RedactLogs{Run: c.Run, Reason: c.Reason}
	for _, r := range c.Logs {
		m.Redactions = append(m.Redactions, &pb.Redact{LogId: r.LogID, OldDigest: r.OldDigest, Digest: r.Digest, Size: r.Size})
	}
	return &pb.Command{Op: &pb.Command_RedactLogs{RedactLogs: m}}
}

func (c DropTableCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_DropTable{DropTable: &pb.DropTable{Run: c.Run, Table: c.Table}}}
}

func (c ForgetDeletedCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_ForgetDeleted{ForgetDeleted: &pb.ForgetDeleted{Before: nanos(c.Before), Limit: clampU32(c.Limit)}}}
}

func (c ImportLogsCmd) toPB() *pb.Command {
	m := &pb.ImportLogs{Run: c.Run, Policy: &pb.Policy{Run: c.Policy.Run, Version: c.Policy.Version, Adapter: c.Policy.Adapter, Step: c.Policy.Step}}
	for i := range c.Items {
		m.Items = append(m.Items, itemToPB(&c.Items[i]))
	}
	for _, g := range c.Groups {
		m.Groups = append(m.Groups, &pb.ImportGroup{Table: g.Table, Group: g.Group, Phase: phaseOf(g.State), Reason: g.Reason, Size: g.Size,
			LogIds: g.LogIDs, Index: g.Index, Priority: g.Priority, TimesSampled: g.TimesSampled, Inserted: nanos(g.Inserted)})
	}
	return &pb.Command{Op: &pb.Command_ImportLogs{ImportLogs: m}}
}

// operatorCommand decodes the commands of this file; nil = another one.
func operatorCommand(now time.Time, m *pb.Command) Command {
	switch op := m.Op.(type) {
	case *pb.Command_RedactLogs:
		c := RedactLogsCmd{Now: now, Run: op.RedactLogs.GetRun(), Reason: op.RedactLogs.GetReason()}
		for _, r := range op.RedactLogs.GetRedactions() {
			c.Logs = append(c.Logs, Redaction{r.GetLogId(), r.GetOldDigest(), r.GetDigest(), r.GetSize()})
		}
		return c
	case *pb.Command_DropTable:
		return DropTableCmd{now, op.DropTable.GetRun(), op.DropTable.GetTable()}
	case *pb.Command_ForgetDeleted:
		return ForgetDeletedCmd{now, fromNanos(op.ForgetDeleted.GetBefore()), int(op.ForgetDeleted.GetLimit())}
	case *pb.Command_ImportLogs:
		c := ImportLogsCmd{Now: now, Run: op.ImportLogs.GetRun()}
		if p := op.ImportLogs.GetPolicy(); p != nil {
			c.Policy = policyFromPB(p)
		}
		for _, it := range op.ImportLogs.GetItems() {
			c.Items = append(c.Items, itemFromPB(it))
		}
		for _, g := range op.ImportLogs.GetGroups() {
			c.Groups = append(c.Groups, ImportGroup{g.GetTable(), g.GetGroup(), stateOf(g.GetPhase()), g.GetReason(), g.GetSize(), g.GetLogIds(),
				g.GetIndex(), g.GetPriority(), g.GetTimesSampled(), fromNanos(g.GetInserted())})
		}
		return c
	}
	return nil
}

// phaseOf is the phase of a group's state as TableGroup has it; an unknown one
// is refused by the fold.
func phaseOf(state string) pb.GroupPhase {
	for p, s := range phaseNames {
		if s == state {
			return p
		}
	}
	return pb.GroupPhase_GROUP_PHASE_UNSPECIFIED
}

func stateOf(p pb.GroupPhase) string { return phaseNames[p] }
