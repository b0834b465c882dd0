package cluster

import (
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// This file turns the door's types into wire messages and back, field by
// field. convert_test.go fills every field by reflection and compares.

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func mapSlice[A, B any](in []A, f func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

func itemTo(i replay.Item) *pb.Item {
	return &pb.Item{
		LogId: i.LogID, Run: i.Run, Table: i.Table, Group: i.Group, Member: i.Member, GroupSize: i.GroupSize,
		Source: i.Source, Task: i.Task, Attempt: i.Attempt, Worker: i.Worker, Status: uint32(i.Status), Cause: i.Cause,
		MinVersion: i.MinVersion, MaxVersion: i.MaxVersion, Tokens: i.Tokens, Reward: i.Reward, HasReward: i.HasReward,
		Digest: i.Digest, SizeBytes: i.Size, Created: nanos(i.Created),
	}
}

func itemFrom(i *pb.Item) replay.Item {
	return replay.Item{
		LogID: i.GetLogId(), Run: i.GetRun(), Table: i.GetTable(), Group: i.GetGroup(), Member: i.GetMember(),
		GroupSize: i.GetGroupSize(), Source: i.GetSource(), Task: i.GetTask(), Attempt: i.GetAttempt(),
		Worker: i.GetWorker(), Status: uint8(i.GetStatus()), Cause: i.GetCause(), MinVersion: i.GetMinVersion(),
		MaxVersion: i.GetMaxVersion(), Tokens: i.GetTokens(), Reward: i.GetReward(), HasReward: i.GetHasReward(),
		Digest: i.GetDigest(), Size: i.GetSizeBytes(), Created: fromNanos(i.GetCreated()),
	}
}

func recordTo(r replay.Record) *pb.Record {
	return &pb.Record{Item: itemTo(r.Item), Data: r.Bytes, Zstd: r.Zstd}
}

func recordFrom(r *pb.Record) replay.Record {
	return replay.Record{Item: itemFrom(r.GetItem()), Bytes: r.GetData(), Zstd: r.GetZstd()}
}

func ticketTo(t replay.Ticket) *pb.Ticket {
	return &pb.Ticket{
		Run: t.Run, Table: t.Table, Group: t.Group, Index: t.Index, GroupSize: t.GroupSize, Attempt: t.Attempt,
		Version: t.Version, Greedy: t.Greedy, Seed: t.Seed, Expires: nanos(t.Expires), Done: t.Done, Task: t.Task,
	}
}

func ticketFrom(t *pb.Ticket) replay.Ticket {
	return replay.Ticket{
		Run: t.GetRun(), Table: t.GetTable(), Group: t.GetGroup(), Index: t.GetIndex(), GroupSize: t.GetGroupSize(),
		Attempt: t.GetAttempt(), Version: t.GetVersion(), Greedy: t.GetGreedy(), Seed: t.GetSeed(),
		Expires: fromNanos(t.GetExpires()), Done: t.GetDone(), Task: t.Task,
	}
}

func resultTo(r replay.AppendResult) *pb.AppendResult {
	return &pb.AppendResult{Duplicate: r.Duplicate, Rejected: r.Rejected, Busy: r.Busy, Closed: r.Closed}
}

func resultFrom(r *pb.AppendResult) replay.AppendResult {
	return replay.AppendResult{Duplicate: r.GetDuplicate(), Rejected: r.GetRejected(), Busy: r.GetBusy(), Closed: r.GetClosed()}
}

func specTo(s replay.RunSpec) *pb.RunSpec {
	return &pb.RunSpec{
		Run: s.Run, Config: s.Config, GroupSize: s.GroupSize, GroupsPerStep: s.GroupsPerStep,
		MaxStaleness: s.MaxStaleness, TicketTtl: int64(s.TicketTTL), MaxAttempts: s.MaxAttempts,
		BaseDigest: s.BaseDigest, StartAdapter: s.StartAdapter, KeepCheckpoints: s.KeepCheckpoints,
		Tenant: s.Tenant, Blobs: s.Blobs, Curriculum: curriculumTo(s.Curriculum), Stragglers: stragglersTo(s.Stragglers),
	}
}

func specFrom(s *pb.RunSpec) replay.RunSpec {
	return replay.RunSpec{
		Run: s.GetRun(), Config: s.GetConfig(), GroupSize: s.GetGroupSize(), GroupsPerStep: s.GetGroupsPerStep(),
		MaxStaleness: s.GetMaxStaleness(), TicketTTL: time.Duration(s.GetTicketTtl()), MaxAttempts: s.GetMaxAttempts(),
		BaseDigest: s.GetBaseDigest(), StartAdapter: s.GetStartAdapter(), KeepCheckpoints: s.GetKeepCheckpoints(),
		Tenant: s.GetTenant(), Blobs: s.GetBlobs(), Curriculum: curriculumFrom(s.GetCurriculum()), Stragglers: stragglersFrom(s.GetStragglers()),
	}
}

func stragglersTo(s replay.Stragglers) *pb.Stragglers {
	if s == (replay.Stragglers{}) {
		return nil
	}
	return &pb.Stragglers{Oversample: s.Oversample, DuplicateAfter: int64(s.DuplicateAfter), Drop: s.Drop}
}

func stragglersFrom(s *pb.Stragglers) replay.Stragglers {
	return replay.Stragglers{Oversample: s.GetOversample(), DuplicateAfter: time.Duration(s.GetDuplicateAfter()), Drop: s.GetDrop()}
}

func curriculumTo(c *replay.Curriculum) *pb.Curriculum {
	if c == nil {
		return nil
	}
	return &pb.Curriculum{Tasks: c.Tasks, Target: c.Target, Candidates: c.Candidates, Seed: c.Seed,
		Phases: mapSlice(c.Phases, func(p replay.CurriculumPhase) *pb.CurriculumPhase {
			return &pb.CurriculumPhase{Step: p.Step, Share: p.Share}
		})}
}

func curriculumFrom(c *pb.Curriculum) *replay.Curriculum {
	if c == nil {
		return nil
	}
	return &replay.Curriculum{Tasks: c.GetTasks(), Target: c.GetTarget(), Candidates: c.GetCandidates(), Seed: c.GetSeed(),
		Phases: mapSlice(c.GetPhases(), func(p *pb.CurriculumPhase) replay.CurriculumPhase {
			return replay.CurriculumPhase{Step: p.GetStep(), Share: p.GetShare()}
		})}
}

func groupTo(g replay.LeasedGroup) *pb.LeasedGroup {
	return &pb.LeasedGroup{
		Group: g.Group, Index: g.Index, Items: mapSlice(g.Items, itemTo),
		Priority: g.Priority, Probability: g.Probability, TimesSampled: g.TimesSampled,
	}
}

func groupFrom(g *pb.LeasedGroup) replay.LeasedGroup {
	return replay.LeasedGroup{
		Group: g.GetGroup(), Index: g.GetIndex(), Items: mapSlice(g.GetItems(), itemFrom),
		Priority: g.GetPriority(), Probability: g.GetProbability(), TimesSampled: g.GetTimesSampled(),
	}
}

func leaseTo(l *replay.Lease) *pb.Lease {
	return &pb.Lease{
		Id: l.ID, Run: l.Run, Holder: l.Holder, Groups: mapSlice(l.Groups, groupTo), Expires: nanos(l.Expires),
	}
}

func leaseFrom(l *pb.Lease) *replay.Lease {
	return &replay.Lease{
		ID: l.GetId(), Run: l.GetRun(), Holder: l.GetHolder(), Groups: mapSlice(l.GetGroups(), groupFrom),
		Expires: fromNanos(l.GetExpires()),
	}
}

func leaseReqTo(r replay.LeaseRequest) *pb.LeaseRequest {
	return &pb.LeaseRequest{
		Run: r.Run, Holder: r.Holder, Groups: int64(r.Groups), LearnerVersion: r.LearnerVersion,
		Ttl: int64(r.TTL), Wait: int64(r.Wait), Table: r.Table, AtLeast: int64(r.AtLeast),
	}
}

func leaseReqFrom(r *pb.LeaseRequest) replay.LeaseRequest {
	return replay.LeaseRequest{
		Run: r.GetRun(), Holder: r.GetHolder(), Groups: int(r.GetGroups()), LearnerVersion: r.GetLearnerVersion(),
		TTL: time.Duration(r.GetTtl()), Wait: time.Duration(r.GetWait()), Table: r.GetTable(), AtLeast: int(r.GetAtLeast()),
	}
}

func stepTo(s replay.StepRecord) *pb.StepRecord {
	return &pb.StepRecord{
		Run: s.Run, Step: s.Step, Version: s.Version, Lease: s.Lease, LogIds: s.LogIDs, Groups: s.Groups,
		PrevCheckpoint: s.PrevCheckpoint, Checkpoint: s.Checkpoint, Adapter: s.Adapter, Metrics: s.Metrics,
		Committed: nanos(s.Committed),
	}
}

func stepFrom(s *pb.StepRecord) replay.StepRecord {
	return replay.StepRecord{
		Run: s.GetRun(), Step: s.GetStep(), Version: s.GetVersion(), Lease: s.GetLease(), LogIDs: s.GetLogIds(),
		Groups: s.GetGroups(), PrevCheckpoint: s.GetPrevCheckpoint(), Checkpoint: s.GetCheckpoint(),
		Adapter: s.GetAdapter(), Metrics: s.GetMetrics(), Committed: fromNanos(s.GetCommitted()),
	}
}

func policyTo(p replay.Policy) *pb.Policy {
	return &pb.Policy{Run: p.Run, Version: p.Version, Adapter: p.Adapter, Step: p.Step}
}

func policyFrom(p *pb.Policy) replay.Policy {
	return replay.Policy{Run: p.GetRun(), Version: p.GetVersion(), Adapter: p.GetAdapter(), Step: p.GetStep()}
}

func statusTo(s replay.RunStatus) *pb.RunStatus {
	out := &pb.RunStatus{
		Spec: specTo(s.Spec), Latest: policyTo(s.Latest), ReadyGroups: int64(s.ReadyGroups),
		RunningGroups: int64(s.RunningGroups), LeasedGroups: int64(s.LeasedGroups),
		ConsumedGroups: int64(s.ConsumedGroups), DroppedGroups: int64(s.DroppedGroups), Appended: int64(s.Appended),
		Duplicates: int64(s.Duplicates), FailedRollouts: int64(s.FailedRollouts),
		FailureReasons: toCounts(s.FailureReasons), StalenessCounts: toCounts(s.StalenessCounts), Finished: s.Finished,
		DropReasons: toCounts(s.DropReasons), LateLogs: int64(s.LateLogs), RejectedLogs: int64(s.RejectedLogs),
		ShrunkGroups: int64(s.ShrunkGroups), DeletedLogs: int64(s.DeletedLogs),
	}
	if s.LastStep != nil {
		out.LastStep = stepTo(*s.LastStep)
	}
	return out
}

func statusFrom(s *pb.RunStatus) replay.RunStatus {
	out := replay.RunStatus{
		Spec: specFrom(s.GetSpec()), Latest: policyFrom(s.GetLatest()), ReadyGroups: int(s.GetReadyGroups()),
		RunningGroups: int(s.GetRunningGroups()), LeasedGroups: int(s.GetLeasedGroups()),
		ConsumedGroups: int(s.GetConsumedGroups()), DroppedGroups: int(s.GetDroppedGroups()),
		Appended: int(s.GetAppended()), Duplicates: int(s.GetDuplicates()), FailedRollouts: int(s.GetFailedRollouts()),
		FailureReasons: fromCounts(s.GetFailureReasons()), StalenessCounts: fromCounts(s.GetStalenessCounts()),
		Finished: s.GetFinished(), DropReasons: fromCounts(s.GetDropReasons()), LateLogs: int(s.GetLateLogs()),
		RejectedLogs: int(s.GetRejectedLogs()), ShrunkGroups: int(s.GetShrunkGroups()), DeletedLogs: int(s.GetDeletedLogs()),
	}
	if s.LastStep != nil {
		st := stepFrom(s.LastStep)
		out.LastStep = &st
	}
	return out
}

func toCounts[K comparable](in map[K]int) map[K]int64 {
	if in == nil {
		return nil
	}
	out := make(map[K]int64, len(in))
	for k, v := range in {
		out[k] = int64(v)
	}
	return out
}

func fromCounts[K comparable](in map[K]int64) map[K]int {
	if in == nil {
		return nil
	}
	out := make(map[K]int, len(in))
	for k, v := range in {
		out[k] = int(v)
	}
	return out
}

func evalReqTo(r replay.EvalRequest) *pb.EvalRequest {
	return &pb.EvalRequest{Run: r.Run, Version: r.Version, From: r.From, Count: r.Count}
}

func evalReqFrom(r *pb.EvalRequest) replay.EvalRequest {
	return replay.EvalRequest{Run: r.GetRun(), Version: r.GetVersion(), From: r.GetFrom(), Count: r.GetCount()}
}

func evalTo(s replay.EvalStatus) *pb.EvalStatus {
	return &pb.EvalStatus{
		Requested: int64(s.Requested), Done: int64(s.Done), Failed: int64(s.Failed), MeanReward: s.MeanReward,
		Success: s.Success, Items: mapSlice(s.Items, itemTo), Scored: int64(s.Scored),
	}
}

func evalFrom(s *pb.EvalStatus) replay.EvalStatus {
	return replay.EvalStatus{
		Requested: int(s.GetRequested()), Done: int(s.GetDone()), Failed: int(s.GetFailed()),
		MeanReward: s.GetMeanReward(), Success: s.GetSuccess(), Items: mapSlice(s.GetItems(), itemFrom),
		Scored: int(s.GetScored()),
	}
}
