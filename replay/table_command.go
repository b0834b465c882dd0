package replay

import (
	"fmt"
	"time"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// A configuration travels as JSON, the form the registry keeps; one that JSON
// cannot say (a number that is not finite) is refused before it is encoded.

func (c SetTableCmd) toPB() *pb.Command {
	config, _ := c.Config.Encode() // EncodeCommand has refused what cannot be
	return &pb.Command{Op: &pb.Command_SetTable{SetTable: &pb.SetTable{
		Run: c.Run, Table: c.Table, Config: config, Version: c.Version}}}
}

func (c InsertGroupsCmd) toPB() *pb.Command {
	m := &pb.InsertGroups{Run: c.Run, Table: c.Table}
	for _, g := range c.Groups {
		m.Groups = append(m.Groups, &pb.GroupInsert{Group: g.Group, LogIds: g.LogIDs, HasPriority: g.HasPriority, Priority: g.Priority})
	}
	return &pb.Command{Op: &pb.Command_InsertGroups{InsertGroups: m}}
}

func (c UpdatePrioritiesCmd) toPB() *pb.Command {
	m := &pb.UpdatePriorities{Run: c.Run, Table: c.Table}
	for _, u := range c.Updates {
		m.Updates = append(m.Updates, &pb.GroupPriority{Group: u.Group, Priority: u.Priority})
	}
	return &pb.Command{Op: &pb.Command_UpdatePriorities{UpdatePriorities: m}}
}

func (c RemoveGroupsCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_RemoveGroups{RemoveGroups: &pb.RemoveGroups{
		Run: c.Run, Table: c.Table, Groups: c.Groups, Reason: c.Reason}}}
}

func setTableFromPB(now time.Time, m *pb.SetTable) (Command, error) {
	cfg, err := table.Decode(m.GetConfig(), table.Config{})
	if err != nil {
		return nil, fmt.Errorf("%w: decode command: table %q: %w", ErrInvalid, cut(m.GetTable(), maxID), err)
	}
	return SetTableCmd{now, m.GetRun(), m.GetTable(), cfg, m.GetVersion()}, nil
}

func insertFromPB(now time.Time, m *pb.InsertGroups) InsertGroupsCmd {
	c := InsertGroupsCmd{Now: now, Run: m.GetRun(), Table: m.GetTable()}
	for _, g := range m.GetGroups() {
		c.Groups = append(c.Groups, GroupInsert{g.GetGroup(), g.GetLogIds(), g.GetHasPriority(), g.GetPriority()})
	}
	return c
}

func updatesFromPB(now time.Time, m *pb.UpdatePriorities) UpdatePrioritiesCmd {
	c := UpdatePrioritiesCmd{Now: now, Run: m.GetRun(), Table: m.GetTable()}
	for _, u := range m.GetUpdates() {
		c.Updates = append(c.Updates, GroupPriority{u.GetGroup(), u.GetPriority()})
	}
	return c
}

func (c DeleteLogsCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_DeleteLogs{DeleteLogs: &pb.DeleteLogs{Run: c.Run, LogIds: c.LogIDs, Reason: c.Reason}}}
}
