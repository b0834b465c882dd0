package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Kinds of faults. Targets are places of nodes; the leader is found when the
// fault begins.
const (
	Kill       Kind = "kill9"        // processes end at once and start again
	KillLeader Kind = "kill9_leader" // the one that leads
	KillAll    Kind = "kill9_all"    // every one at the same moment
	Pause      Kind = "sigstop"      // SIGSTOP, later SIGCONT
	PauseLead  Kind = "sigstop_leader"
	Partition  Kind = "partition"         // a minority is cut off, from clients too or not
	OneWay     Kind = "partition_one_way" // one node's packets reach nobody, or nobody's reach it
	Links      Kind = "partition_links"   // single links between nodes are cut, in one direction or both
	Delay      Kind = "delay"             // packets to and from a node take longer
	SlowDisk   Kind = "disk_slow"
	StallDisk  Kind = "disk_stall" // writes wait until the end
	FailDisk   Kind = "disk_fail"  // some writes and syncs fail
	PowerCut   Kind = "power_cut"
	PowerAll   Kind = "power_cut_all"
	FillDisk   Kind = "disk_full"      // down to half of the watermark
	FillUp     Kind = "disk_full_hard" // down to nothing
	Clock      Kind = "clock_jump"
	Rolling    Kind = "rolling_restart"  // every node in turn, in order
	Lag        Kind = "snapshot_install" // a node is away until only a snapshot can help
	Replace    Kind = "replace_node"     // a node's folder is gone for good; another takes its place
	Grow       Kind = "add_remove_node"  // one more node joins, and leaves again
)

// Fault is one entry of a schedule.
type Fault struct {
	At     time.Duration `json:"at"` // from the start
	For    time.Duration `json:"for"`
	Kind   Kind          `json:"kind"`
	Target int           `json:"target"` // place of a node; of -1 the leader is meant
	Seed   uint64        `json:"seed"`   // of what else is to be chosen
}

func (f Fault) String() string {
	return fmt.Sprintf("%s for %v on node %d at %v", f.Kind, f.For, f.Target, f.At)
}

// weights say how often each kind comes, and how long it lasts.
var weights = []struct {
	kind      Kind
	weight    int
	from, to  time.Duration
	needsDisk bool
}{
	{Kill, 10, 500 * time.Millisecond, 6 * time.Second, false},
	{KillLeader, 10, 500 * time.Millisecond, 6 * time.Second, false},
	{KillAll, 3, time.Second, 3 * time.Second, false},
	{Pause, 6, time.Second, 8 * time.Second, false},
	{PauseLead, 8, time.Second, 8 * time.Second, false},
	{Partition, 9, time.Second, 9 * time.Second, false},
	{OneWay, 6, time.Second, 8 * time.Second, false},
	{Links, 6, time.Second, 8 * time.Second, false},
	{Delay, 6, 2 * time.Second, 8 * time.Second, false},
	{SlowDisk, 5, 2 * time.Second, 8 * time.Second, true},
	{StallDisk, 4, 2 * time.Second, 14 * time.Second, true},
	{FailDisk, 5, time.Second, 4 * time.Second, true},
	{PowerCut, 10, 500 * time.Millisecond, 5 * time.Second, true},
	{PowerAll, 6, time.Second, 3 * time.Second, true},
	{FillDisk, 4, 3 * time.Second, 10 * time.Second, true},
	{FillUp, 2, 2 * time.Second, 6 * time.Second, true},
	{Clock, 7, 3 * time.Second, 12 * time.Second, false},
	{Rolling, 2, 12 * time.Second, 20 * time.Second, false},
	{Lag, 2, 20 * time.Second, 30 * time.Second, false},
	{Replace, 2, 20 * time.Second, 30 * time.Second, false},
	{Grow, 2, 20 * time.Second, 30 * time.Second, false},
}

// quick are the kinds of the short form.
var quick = []Kind{Kill, KillLeader, Pause, PauseLead, Partition}

// alone are kinds beside which no other fault is begun: they change the
// membership, or take all nodes at once.
var alone = []Kind{KillAll, PowerAll, Rolling, Replace, Grow, Lag}

// Schedule lays out faults over a time. It is a pure function: the same
// arguments give the same faults. kinds limits them (nil = all); without disk
// those that need the file system of package disk are left out.
//
// Up to three faults overlap, on nodes of their own or not. Every 30 s or so
// there is a calm of some seconds in which the group can recover, so that the
// next fault finds something to break.
func Schedule(seed uint64, length time.Duration, nodes int, disk bool, kinds []Kind) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	total := 0
	use := func(i int) bool {
		w := weights[i]
		return (kinds == nil || slices.Contains(kinds, w.kind)) && (disk || !w.needsDisk) && w.from < length
	}
	for i := range weights {
		if use(i) {
			total += weights[i].weight
		}
	}
	if total == 0 {
		return nil
	}
	pick := func() int {
		n := rng.IntN(total)
		for i := range weights {
			if !use(i) {
				continue
			}
			if n -= weights[i].weight; n < 0 {
				return i
			}
		}
		panic("unreachable")
	}
	between := func(from, to time.Duration) time.Duration {
		return from + time.Duration(rng.Int64N(int64(to-from)+1)).Truncate(time.Millisecond)
	}
	var out []Fault
	end := func() (last time.Duration) { // of all so far
		for _, f := range out {
			last = max(last, f.At+f.For)
		}
		return last
	}
	calm := between(20*time.Second, 40*time.Second)
	for at := between(time.Second, 3*time.Second); at < length; {
		w := weights[pick()]
		f := Fault{At: at, Kind: w.kind, For: between(w.from, w.to), Target: rng.IntN(nodes), Seed: rng.Uint64()}
		if slices.Contains([]Kind{KillLeader, PauseLead}, f.Kind) || rng.IntN(4) == 0 {
			f.Target = -1
		}
		lone := slices.Contains(alone, f.Kind)
		if lone {
			f.At = max(f.At, end()+2*time.Second)
		}
		if f.At+f.For > length {
			break
		}
		out = append(out, f)
		at = f.At + between(300*time.Millisecond, 6*time.Second)
		if lone {
			at = f.At + f.For + between(time.Second, 4*time.Second)
		}
		running := 0
		for _, o := range out {
			if o.At+o.For > at {
				running++
			}
		}
		if running >= 3 {
			at = end()
		}
		if at > calm {
			at = max(at, end()) + between(4*time.Second, 7*time.Second)
			calm = at + between(20*time.Second, 40*time.Second)
		}
	}
	slices.SortStableFunc(out, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return out
}
