package replay

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// marshal writes equal messages as equal bytes: no message of ours has a map.
var marshal = proto.MarshalOptions{Deterministic: true}

// nanos turns a time into Unix nanoseconds, the zero time into 0.
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

func itemToPB(it *Item) *pb.Item {
	return &pb.Item{
		LogId: it.LogID, Run: it.Run, Table: it.Table, Group: it.Group, Member: it.Member, GroupSize: it.GroupSize,
		Source: it.Source, Task: it.Task, Attempt: it.Attempt, Worker: it.Worker, Status: uint32(it.Status), Cause: it.Cause,
		MinVersion: it.MinVersion, MaxVersion: it.MaxVersion, Tokens: it.Tokens, Reward: it.Reward, HasReward: it.HasReward,
		Digest: it.Digest, Size: it.Size, Created: nanos(it.Created),
	}
}

func itemFromPB(m *pb.Item) Item {
	if m == nil {
		return Item{}
	}
	return Item{
		LogID: m.LogId, Run: m.Run, Table: m.Table, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize,
		Source: m.Source, Task: m.Task, Attempt: m.Attempt, Worker: m.Worker, Status: uint8(min(m.Status, 255)), Cause: m.Cause,
		MinVersion: m.MinVersion, MaxVersion: m.MaxVersion, Tokens: m.Tokens, Reward: m.Reward, HasReward: m.HasReward,
		Digest: m.Digest, Size: m.Size, Created: fromNanos(m.Created),
	}
}

func specToPB(s RunSpec) *pb.RunSpec {
	return &pb.RunSpec{
		Run: s.Run, Config: s.Config, GroupSize: s.GroupSize, GroupsPerStep: s.GroupsPerStep, MaxStaleness: s.MaxStaleness,
		TicketTtl: int64(s.TicketTTL), MaxAttempts: s.MaxAttempts, BaseDigest: s.BaseDigest, StartAdapter: s.StartAdapter, KeepCheckpoints: s.KeepCheckpoints,
		Tenant: s.Tenant, Blobs: s.Blobs, Curriculum: curriculumToPB(s.Curriculum), Stragglers: stragglersToPB(s.Stragglers),
	}
}

func specFromPB(m *pb.RunSpec) RunSpec {
	if m == nil {
		return RunSpec{}
	}
	return RunSpec{
		Run: m.Run, Config: m.Config, GroupSize: m.GroupSize, GroupsPerStep: m.GroupsPerStep, MaxStaleness: m.MaxStaleness,
		TicketTTL: time.Duration(m.TicketTtl), MaxAttempts: m.MaxAttempts, BaseDigest: m.BaseDigest, StartAdapter: m.StartAdapter, KeepCheckpoints: m.KeepCheckpoints,
		Tenant: m.Tenant, Blobs: m.Blobs, Curriculum: curriculumFromPB(m.Curriculum), Stragglers: stragglersFromPB(m.Stragglers),
	}
}

func stepToPB(s *StepRecord) *pb.StepRecord {
	m := &pb.StepRecord{
		Run: s.Run, Step: s.Step, Version: s.Version, Lease: s.Lease, LogIds: s.LogIDs, Groups: s.Groups,
		PrevCheckpoint: s.PrevCheckpoint, Checkpoint: s.Checkpoint, Adapter: s.Adapter, Committed: nanos(s.Committed),
	}
	for name, v := range s.Metrics {
		m.Metrics = append(m.Metrics, &pb.Metric{Name: name, Value: v})
	}
	slices.SortFunc(m.Metrics, func(a, b *pb.Metric) int { return strings.Compare(a.Name, b.Name) })
	return m
}

func stepFromPB(m *pb.StepRecord) StepRecord {
	if m == nil {
		return StepRecord{}
	}
	s := StepRecord{
		Run: m.Run, Step: m.Step, Version: m.Version, Lease: m.Lease, LogIDs: m.LogIds, Groups: m.Groups,
		PrevCheckpoint: m.PrevCheckpoint, Checkpoint: m.Checkpoint, Adapter: m.Adapter, Committed: fromNanos(m.Committed),
	}
	if len(m.Metrics) > 0 {
		s.Metrics = make(map[string]float64, len(m.Metrics))
		for _, x := range m.Metrics {
			s.Metrics[x.Name] = x.Value
		}
	}
	return s
}

func policyFromPB(m *pb.Policy) Policy {
	return Policy{Run: m.Run, Version: m.Version, Adapter: m.Adapter, Step: m.Step}
}
