package replay

import (
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// A group whose worker is slow may have a second worker, its twin, with a ticket
// and a deadline of its own. The first ticket goes on; whichever log of a member
// comes first is accepted. When the first ticket ends, the twin's becomes the
// group's and the attempt counts.

// stragglersLooked bounds how many tickets one search looks at.
const stragglersLooked = 256

// enough says whether a running group is complete: every member ended, or as
// many as the learner wants did not fail.
func enough(r *runState, g *pb.GroupState) bool {
	if len(g.Members) >= int(g.Size) {
		return true
	}
	over := r.Spec.GetStragglers().GetOversample()
	if over == 0 || g.Table != TableTrain {
		return false
	}
	good := 0
	for _, m := range g.Members {
		if !m.Failed {
			good++
		}
	}
	return good >= int(g.Size-over)
}

// holds says whether worker has a ticket of g.
func holds(g *pb.GroupState, worker string) bool {
	return g.Phase == pb.GroupPhase_GROUP_PHASE_RUNNING && (g.Worker == worker || g.Twin == worker)
}

// straggler is the group of the run whose ticket ends first, thus is out for the
// longest, among those that may have a twin; nil when there is none.
func straggler(kv Reader, r *pb.RunState, run, worker string, now int64) (*pb.GroupState, error) {
	after := r.Spec.GetStragglers().GetDuplicateAfter()
	if after == 0 || r.Finished {
		return nil, nil
	}
	prefix := keys.New('x')
	// A ticket that was out for long enough ends by then.
	end := endOf(now, time.Duration(r.Spec.TicketTtl-after))
	var names []string
	var bad error
	looked := 0
	err := kv.Iterate(prefix, nil, func(k, v []byte) bool {
		looked++
		if int64(binary.BigEndian.Uint64(k[len(prefix):])) > end || looked > stragglersLooked {
			return false
		}
		e := new(pb.Expiry)
		if bad = proto.Unmarshal(v, e); bad != nil {
			return false
		}
		if e.Run == run && e.Table == "" && e.Lease == 0 {
			names = append(names, e.Group)
		}
		return true
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		g := new(pb.GroupState)
		if _, err := load(kv, groupKey(run, name), g); err != nil {
			return nil, err
		}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_RUNNING && g.Twin == "" && g.Worker != worker && g.Attempt < r.Spec.MaxAttempts &&
			!(g.Table == TableTrain && stale(r, g, r.LatestVersion)) {
			return g, nil
		}
	}
	return nil, nil
}

// issueTwin makes worker the second worker of a running group.
func (f *fold) issueTwin(r *runState, g *pb.GroupState, worker string) error {
	g.Twin, g.TwinExpires = worker, f.after(time.Duration(r.Spec.TicketTtl))
	r.Twins++
	return f.ticketOut(r, g, worker, g.TwinExpires)
}

// endTwin takes the second ticket back, if there is one.
func (f *fold) endTwin(r *runState, g *pb.GroupState) error {
	if g.Twin == "" {
		return nil
	}
	err := f.ticketBack(r, g, g.Twin, g.TwinExpires)
	g.Twin, g.TwinExpires = "", 0
	return err
}

// promote ends the first ticket of a group that has a twin, whose ticket takes
// its place.
func (f *fold) promote(r *runState, g *pb.GroupState) error {
	err := f.ticketBack(r, g, g.Worker, g.Expires)
	g.Worker, g.Expires, g.Attempt = g.Twin, g.TwinExpires, g.Attempt+1
	g.Twin, g.TwinExpires = "", 0
	return firstError(err, f.putGroup(r.run, g))
}
