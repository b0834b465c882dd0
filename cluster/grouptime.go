package cluster

import (
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
)

// The group's time: every command carries it, and tickets and leases run out by
// it. It is the leader's; the others follow it through announcements, so that
// whoever leads next goes on where it stands instead of with a wall clock that
// may be wrong. See package clock.

// now is the time to stamp a command with.
func (n *Node) now() time.Time { return n.clock.Now() }

func (n *Node) groupTime() *pb.GroupTime {
	t, known := n.clock.Time()
	return &pb.GroupTime{Now: nanos(t), Known: known, Leads: n.ready.Load() != 0}
}

// hearTime takes over what another node says, unless this one leads.
func (n *Node) hearTime(from string, t *pb.GroupTime) {
	if from == "" || t == nil || n.ready.Load() != 0 {
		return
	}
	// A deposed leader does not know it yet.
	_, leader := n.raft.LeaderWithID()
	n.clock.Hear(from, fromNanos(t.GetNow()), t.GetKnown(), t.GetLeads() && string(leader) == from)
}
