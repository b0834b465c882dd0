package replay

import (
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

func (c SetShardCmd) Clock() time.Time   { return c.Now }
func (c PlaceRunCmd) Clock() time.Time   { return c.Now }
func (c MoveRunCmd) Clock() time.Time    { return c.Now }
func (c AdoptPairsCmd) Clock() time.Time { return c.Now }
func (c DropPairsCmd) Clock() time.Time  { return c.Now }

func (c SetShardCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_SetShard{SetShard: &pb.SetShard{Shard: shardToPB(c.Shard)}}}
}

func (c PlaceRunCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_PlaceRun{PlaceRun: &pb.PlaceRun{Placement: placementToPB(c.Placement)}}}
}

func (c MoveRunCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_MoveRun{MoveRun: &pb.MoveRun{Run: c.Run, Move: c.Move, Step: uint32(c.Step), To: c.To}}}
}

func (c AdoptPairsCmd) toPB() *pb.Command {
	m := &pb.AdoptPairs{Run: c.Run, Move: c.Move}
	for _, p := range c.Pairs {
		m.Pairs = append(m.Pairs, &pb.Pair{Key: p.Key, Value: p.Value})
	}
	return &pb.Command{Op: &pb.Command_AdoptPairs{AdoptPairs: m}}
}

func (c DropPairsCmd) toPB() *pb.Command {
	return &pb.Command{Op: &pb.Command_DropPairs{DropPairs: &pb.DropPairs{Run: c.Run, Move: c.Move, Keys: c.Keys}}}
}

// shardCommand decodes the commands of this file; nil = another one.
func shardCommand(now time.Time, m *pb.Command) Command {
	switch op := m.Op.(type) {
	case *pb.Command_SetShard:
		return SetShardCmd{now, shardFromPB(op.SetShard.GetShard())}
	case *pb.Command_PlaceRun:
		return PlaceRunCmd{now, placementFromPB(op.PlaceRun.GetPlacement())}
	case *pb.Command_MoveRun:
		m := op.MoveRun
		return MoveRunCmd{now, m.GetRun(), m.GetMove(), MoveStep(m.GetStep()), m.GetTo()}
	case *pb.Command_AdoptPairs:
		c := AdoptPairsCmd{Now: now, Run: op.AdoptPairs.GetRun(), Move: op.AdoptPairs.GetMove()}
		for _, p := range op.AdoptPairs.GetPairs() {
			c.Pairs = append(c.Pairs, Pair{p.GetKey(), p.GetValue()})
		}
		return c
	case *pb.Command_DropPairs:
		return DropPairsCmd{now, op.DropPairs.GetRun(), op.DropPairs.GetMove(), op.DropPairs.GetKeys()}
	}
	return nil
}

func shardToPB(s Shard) *pb.Shard {
	return &pb.Shard{Name: s.Name, Group: s.Group, Addrs: s.Addrs, Version: s.Version, Set: nanos(s.Set)}
}

func shardFromPB(m *pb.Shard) Shard {
	return Shard{m.GetName(), m.GetGroup(), m.GetAddrs(), m.GetVersion(), fromNanos(m.GetSet())}
}

func placementToPB(p Placement) *pb.Placement {
	return &pb.Placement{Run: p.Run, Tenant: p.Tenant, Shard: p.Shard, To: p.To, Phase: uint32(p.Phase), Version: p.Version, Set: nanos(p.Set)}
}

func placementFromPB(m *pb.Placement) Placement {
	return Placement{m.GetRun(), m.GetTenant(), m.GetShard(), m.GetTo(), PlacePhase(m.GetPhase()), m.GetVersion(), fromNanos(m.GetSet())}
}

// adoptedLogs are the logs whose bytes adopted pairs make needed.
func adoptedLogs(pairs []Pair) (out []Item) {
	for _, p := range pairs {
		if len(p.Key) == 0 || p.Key[0] != 'l' {
			continue
		}
		s := new(pb.ItemState)
		if proto.Unmarshal(p.Value, s) == nil && !s.Deleted { // the fold has checked it
			out = append(out, itemFromPB(s.GetItem()))
		}
	}
	return out
}
