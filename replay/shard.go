package replay

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// This file is what cluster needs to keep runs in several raft groups (shards).
// A run lives in one of them; the first, the root, keeps where (ADR 11).

// RootShard is the name of the first raft group of a cluster.
const RootShard = "root"

// ErrMoved: the run lives in another shard, or is on its way there. Ask the root
// where, and try again; whoever uses a Store that knows of shards never sees it.
var ErrMoved = errors.New("replay: the run lives in another shard or is on its way")

// movedPrefix begins AppendResult.Busy of a run that is elsewhere.
const movedPrefix = "moved: "

// Moved says that Busy is about where the record's run lives: see [ErrMoved].
func (r AppendResult) Moved() bool { return strings.HasPrefix(r.Busy, movedPrefix) }

var shardName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

// CheckShard says what is wrong with a shard's name.
func CheckShard(name string) error {
	if shardName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("shard %q: use 1 to 31 lower-case letters, digits and '-', starting with a letter or digit", cut(name, maxID))
}

// Shard is a raft group as the root has it registered. In a shard's own state it
// names the root.
type Shard struct {
	Name    string
	Group   string   // the raft group's name in certificates
	Addrs   []string // of nodes, when it was registered
	Version uint64   // 0 = not registered
	Set     time.Time
}

// PlacePhase is how far a move is. Until it is switched the run lives where it
// was, and the move can be taken back; from then on it lives where it goes.
type PlacePhase uint32

// The phases of a move.
const (
	PlaceAtRest   PlacePhase = 0
	PlaceCopying  PlacePhase = 1
	PlaceSwitched PlacePhase = 2 // what the run left behind is to be cleaned
)

// String is the phase for people.
func (p PlacePhase) String() string {
	switch p {
	case PlaceAtRest:
		return "at rest"
	case PlaceCopying:
		return "copying"
	case PlaceSwitched:
		return "switched"
	}
	return fmt.Sprintf("phase %d", uint32(p))
}

// Placement says where a run lives. Version is the fencing token of moves: it
// grows with every change, and a mover whose version is not the newest decides
// nothing any more.
type Placement struct {
	Run     string
	Tenant  string
	Shard   string
	To      string // while it moves: the shard it goes to, once switched the one it left
	Phase   PlacePhase
	Version uint64 // 0 = never placed: the run lives in the root, if anywhere
	Set     time.Time
}

// MoveStep is a step of a move in the state of one shard.
type MoveStep uint32

// The steps of a move.
const (
	// MoveFreeze lets a run stand still where it is: every other command and its
	// deadlines wait.
	MoveFreeze MoveStep = 1
	// MoveBegin makes room where a run arrives. What an earlier move left there
	// becomes this one's.
	MoveBegin MoveStep = 2
	// MoveThaw lets a run go on, where it arrived or where it stood still.
	MoveThaw MoveStep = 3
	// MoveLeave ends it where it left, after all its pairs were dropped.
	MoveLeave MoveStep = 4
)

// Pair is one key of a run's state.
type Pair struct {
	Key, Value []byte
}

// SetShardCmd registers a shard, whose version was Shard.Version before (0 = it
// was not registered). An equal one is a success that changes nothing.
type SetShardCmd struct {
	Now   time.Time
	Shard Shard
}

// PlaceRunCmd changes where a run lives. With Version 0 it places a run for the
// first time; where one is placed already that is the answer, and nothing
// changes. Another version than the placement's is ErrStale.
type PlaceRunCmd struct {
	Now       time.Time
	Placement Placement
}

// MoveRunCmd is one step of the move that the placement with version Move began.
// A repeated step is a success; one of an older move than the run has seen is
// ErrStale.
type MoveRunCmd struct {
	Now  time.Time
	Run  string
	Move uint64
	Step MoveStep
	To   string // MoveLeave: where the run lives now
}

// AdoptPairsCmd writes a part of the state of a run that arrives.
type AdoptPairsCmd struct {
	Now   time.Time
	Run   string
	Move  uint64
	Pairs []Pair
}

// DropPairsCmd deletes a part of the state of a run that left.
type DropPairsCmd struct {
	Now  time.Time
	Run  string
	Move uint64
	Keys [][]byte
}
