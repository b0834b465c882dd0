package replay

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Shards lists the registered shards by name: in the root's state the others, in
// a shard's own the root.
func Shards(kv Reader) (out []Shard, err error) {
	var bad error
	err = kv.Iterate(keys.New('S'), nil, func(_, v []byte) bool {
		m := new(pb.Shard)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		out = append(out, shardFromPB(m))
		return true
	})
	return out, errors.Join(err, bad)
}

// PlacementOf is where a run was placed; Version 0: it never was.
func PlacementOf(kv Reader, run string) (Placement, error) {
	m := new(pb.Placement)
	_, err := load(kv, placementKey(run), m)
	return placementFromPB(m), err
}

// Placements lists where runs were placed, by run.
func Placements(kv Reader) (out []Placement, err error) {
	var bad error
	err = kv.Iterate(keys.New('P'), nil, func(_, v []byte) bool {
		m := new(pb.Placement)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		out = append(out, placementFromPB(m))
		return true
	})
	return out, errors.Join(err, bad)
}

// CountRuns counts the runs that live here, and those not finished.
func CountRuns(kv Reader) (all, unfinished int, err error) {
	err = eachRun(kv, func(r *pb.RunState) {
		if r.Moving != pb.RunMove_RUN_MOVE_IN {
			all++
			if !r.Finished {
				unfinished++
			}
		}
	})
	return all, unfinished, err
}
