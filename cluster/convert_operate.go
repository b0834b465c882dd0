package cluster

import (
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// This file turns the types of replay/operate_door.go into messages and back.

func exactTo(x replay.Exact) *pb.Exact { return &pb.Exact{LogId: x.LogID, Digest: x.Digest} }

func exactFrom(x *pb.Exact) replay.Exact {
	return replay.Exact{LogID: x.GetLogId(), Digest: x.GetDigest()}
}

func twinTo(t replay.Twin) *pb.Twin {
	return &pb.Twin{LogId: t.LogID, OldDigest: t.OldDigest, Digest: t.Digest, Data: t.Bytes}
}

func twinFrom(t *pb.Twin) replay.Twin {
	return replay.Twin{LogID: t.GetLogId(), OldDigest: t.GetOldDigest(), Digest: t.GetDigest(), Bytes: t.GetData()}
}

func importGroupTo(g replay.ImportGroup) *pb.ImportGroup {
	return &pb.ImportGroup{Table: g.Table, Group: g.Group, State: g.State, Reason: g.Reason, Size: g.Size, LogIds: g.LogIDs, Index: g.Index,
		Priority: g.Priority, TimesSampled: g.TimesSampled, Inserted: nanos(g.Inserted)}
}

func importGroupFrom(g *pb.ImportGroup) replay.ImportGroup {
	return replay.ImportGroup{Table: g.GetTable(), Group: g.GetGroup(), State: g.GetState(), Reason: g.GetReason(), Size: g.GetSize(),
		LogIDs: g.GetLogIds(), Index: g.GetIndex(), Priority: g.GetPriority(), TimesSampled: g.GetTimesSampled(), Inserted: fromNanos(g.GetInserted())}
}

func compactTo(q replay.CompactRequest) *pb.CompactRequest {
	return &pb.CompactRequest{Grace: int64(q.Grace), Dead: q.Dead, Applied: q.Applied, ForgetAfter: int64(q.ForgetAfter)}
}

func compactFrom(q *pb.CompactRequest) replay.CompactRequest {
	return replay.CompactRequest{Grace: time.Duration(q.GetGrace()), Dead: q.GetDead(), Applied: q.GetApplied(), ForgetAfter: time.Duration(q.GetForgetAfter())}
}

func nodeCompactionTo(c replay.NodeCompaction) *pb.NodeCompaction {
	return &pb.NodeCompaction{Node: c.Node, Error: c.Err, Segments: int64(c.Segments), Moved: int64(c.Moved), Dropped: int64(c.Dropped),
		Bytes: c.Bytes, Held: int64(c.Held), Damaged: int64(c.Damaged)}
}

func nodeCompactionFrom(c *pb.NodeCompaction) replay.NodeCompaction {
	return replay.NodeCompaction{Node: c.GetNode(), Err: c.GetError(), CompactReport: replay.CompactReport{
		Segments: int(c.GetSegments()), Moved: int(c.GetMoved()), Dropped: int(c.GetDropped()), Bytes: c.GetBytes(),
		Held: int(c.GetHeld()), Damaged: int(c.GetDamaged())}}
}

func nodeVerificationTo(v replay.NodeVerification) *pb.NodeVerification {
	return &pb.NodeVerification{Node: v.Node, Error: v.Err, Index: v.Index, State: v.State, Pairs: int64(v.Pairs), Records: int64(v.Records),
		Bytes: v.Bytes, Gaps: int64(v.Gaps), GapBytes: v.GapBytes, Logs: int64(v.Logs), Missing: int64(v.Missing), Bad: v.Bad,
		Blobs: int64(v.Blobs), MissingBlobs: int64(v.MissingBlobs)}
}

func nodeVerificationFrom(v *pb.NodeVerification) replay.NodeVerification {
	return replay.NodeVerification{Node: v.GetNode(), Err: v.GetError(), Index: v.GetIndex(), State: v.GetState(), Pairs: int(v.GetPairs()),
		VerifyReport: replay.VerifyReport{Records: int(v.GetRecords()), Bytes: v.GetBytes(), Gaps: int(v.GetGaps()), GapBytes: v.GetGapBytes(),
			Logs: int(v.GetLogs()), Missing: int(v.GetMissing()), Bad: v.GetBad(), Blobs: int(v.GetBlobs()), MissingBlobs: int(v.GetMissingBlobs())}}
}

func nodeRepairTo(r replay.NodeRepair) *pb.NodeRepair {
	return &pb.NodeRepair{Node: r.Node, Error: r.Err, Damaged: int64(r.Damaged), Pulled: int64(r.Pulled), Left: int64(r.Left),
		Blobs: int64(r.Blobs), BlobsLeft: int64(r.BlobsLeft)}
}

func nodeRepairFrom(r *pb.NodeRepair) replay.NodeRepair {
	return replay.NodeRepair{Node: r.GetNode(), Err: r.GetError(), Damaged: int(r.GetDamaged()), Pulled: int(r.GetPulled()), Left: int(r.GetLeft()),
		Blobs: int(r.GetBlobs()), BlobsLeft: int(r.GetBlobsLeft())}
}
