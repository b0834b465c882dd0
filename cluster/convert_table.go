package cluster

import (
	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

func tableTo(t replay.TableStatus) (*pb.TableStatus, error) {
	cfg, err := t.Config.Encode()
	return &pb.TableStatus{
		Run: t.Run, Table: t.Table, Config: cfg, Version: t.Version, Set: nanos(t.Set), Open: t.Open, Ready: t.Ready, Leased: t.Leased,
		Bytes: t.Bytes, Inserted: t.Inserted, Sampled: t.Sampled, Consumed: t.Consumed, Epoch: t.Epoch, Removed: toCounts(t.Removed),
		Refused: toCounts(t.Refused), Duplicates: t.Duplicates, InsertBlocked: t.InsertBlocked, SampleBlocked: t.SampleBlocked,
		Indexing: t.Indexing,
	}, err
}

func tableFrom(t *pb.TableStatus) (replay.TableStatus, error) {
	cfg, err := table.Decode(t.GetConfig(), table.Config{})
	return replay.TableStatus{
		Run: t.GetRun(), Table: t.GetTable(), Config: cfg, Version: t.GetVersion(), Set: fromNanos(t.GetSet()), Open: t.GetOpen(),
		Ready: t.GetReady(), Leased: t.GetLeased(), Bytes: t.GetBytes(), Inserted: t.GetInserted(), Sampled: t.GetSampled(),
		Consumed: t.GetConsumed(), Epoch: t.GetEpoch(), Removed: fromCounts(t.GetRemoved()), Refused: fromCounts(t.GetRefused()),
		Duplicates: t.GetDuplicates(), InsertBlocked: t.GetInsertBlocked(), SampleBlocked: t.GetSampleBlocked(), Indexing: t.GetIndexing(),
	}, err
}

func tableGroupTo(g replay.TableGroup) *pb.TableGroup {
	return &pb.TableGroup{
		Group: g.Group, State: g.State, Reason: g.Reason, Seq: g.Seq, Size: g.Size, LogIds: g.LogIDs, Priority: g.Priority,
		TimesSampled: g.TimesSampled, Inserted: nanos(g.Inserted), Bytes: g.Bytes, Lease: g.Lease,
	}
}

func tableGroupFrom(g *pb.TableGroup) replay.TableGroup {
	return replay.TableGroup{
		Group: g.GetGroup(), State: g.GetState(), Reason: g.GetReason(), Seq: g.GetSeq(), Size: g.GetSize(), LogIDs: g.GetLogIds(),
		Priority: g.GetPriority(), TimesSampled: g.GetTimesSampled(), Inserted: fromNanos(g.GetInserted()), Bytes: g.GetBytes(), Lease: g.GetLease(),
	}
}

func insertTo(g replay.GroupInsert) *pb.GroupInsert {
	return &pb.GroupInsert{Group: g.Group, LogIds: g.LogIDs, HasPriority: g.HasPriority, Priority: g.Priority}
}

func insertFrom(g *pb.GroupInsert) replay.GroupInsert {
	return replay.GroupInsert{Group: g.GetGroup(), LogIDs: g.GetLogIds(), HasPriority: g.GetHasPriority(), Priority: g.GetPriority()}
}

func priorityTo(p replay.GroupPriority) *pb.GroupPriority {
	return &pb.GroupPriority{Group: p.Group, Priority: p.Priority}
}

func priorityFrom(p *pb.GroupPriority) replay.GroupPriority {
	return replay.GroupPriority{Group: p.GetGroup(), Priority: p.GetPriority()}
}
