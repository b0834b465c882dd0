package replay

import (
	"fmt"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// TrainTable is the table that a run's train groups stand in, as a
// configuration: complete groups by task index (the priority), each trained
// once, none staler than the bound, and no more on their way than the bound
// allows. It follows from the spec and is not changed by itself. Its keys are
// older than configured tables and stay as they are, so that recorded
// histories fold to the same bytes; TestTrainIsATable holds it to this.
func TrainTable(spec RunSpec) table.Config {
	c := table.Default()
	c.Sampler = table.Selector{Kind: table.MinHeap}
	c.MaxStaleness = int64(spec.MaxStaleness)
	c.MaxItems = spec.Capacity()
	return c
}

// trainStatus is the train table as Tables lists it. Groups being rolled out
// are its open ones; bytes and inserts are not counted there.
func trainStatus(r *pb.RunState) TableStatus {
	s := TableStatus{
		Run: r.Spec.Run, Table: TableTrain, Config: TrainTable(specFromPB(r.Spec)),
		Open: r.OpenGroups, Ready: r.ReadyGroups, Leased: r.LeasedGroups, Consumed: r.ConsumedGroups, Sampled: r.ConsumedGroups,
		Removed: counts(r.DropReasons), Refused: map[string]int{}, Duplicates: r.Duplicates,
	}
	s.Inserted = s.Ready + s.Leased + s.Consumed
	if n := s.Open + s.Ready + s.Leased; n >= capacity(r.Spec) {
		s.InsertBlocked = fmt.Sprintf("full: %d groups ready, %d leased and %d rolling out, at most %d", s.Ready, s.Leased, s.Open, capacity(r.Spec))
	}
	if s.Ready == 0 {
		s.SampleBlocked = fmt.Sprintf("0 groups are ready, %d leased and %d rolling out", s.Leased, s.Open)
	}
	return s
}
