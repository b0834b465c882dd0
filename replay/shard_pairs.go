package replay

import (
	"bytes"
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// RunPairs calls fn with every pair of a run's state that a move carries, in an
// order that both ends share. The run's own state is given as it is at rest.
func RunPairs(kv Reader, run string, fn func(Pair) error) error {
	if _, err := readRun(kv, run); err != nil {
		return err
	}
	var bad error
	give := func(k, v []byte) bool {
		bad = fn(Pair{bytes.Clone(k), append([]byte{}, v...)})
		return bad == nil
	}
	for _, tag := range runTags {
		err := kv.Iterate(keys.New(tag).Str(run), nil, func(k, v []byte) bool {
			if tag != 'r' {
				return give(k, v)
			}
			r := new(pb.RunState)
			if bad = proto.Unmarshal(v, r); bad != nil {
				return false
			}
			r.Move, r.Moving = 0, pb.RunMove_RUN_MOVE_NONE
			b, err := marshal.Marshal(r)
			if bad = err; bad != nil {
				return false
			}
			return give(k, b)
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
	}
	deleted := map[string]bool{}
	var logs []string
	err := kv.Iterate(keys.New('l'), nil, func(k, v []byte) bool {
		s := new(pb.ItemState)
		if bad = proto.Unmarshal(v, s); bad != nil {
			return false
		}
		if s.GetItem().GetRun() != run {
			return true
		}
		id := strings.Clone(s.GetItem().GetLogId())
		if s.Deleted {
			deleted[id] = true
		} else {
			logs = append(logs, id)
		}
		return give(k, v)
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	for _, id := range logs {
		if err := errors.Join(kv.Iterate(referencePrefix(id), nil, give), bad); err != nil {
			return err
		}
	}
	if err := errors.Join(kv.Iterate(keys.New('D'), nil, func(k, v []byte) bool {
		return !deleted[keys.Unescape(k[9:])] || give(k, v)
	}), bad); err != nil {
		return err
	}
	own := keys.New('x').Str(run)[1:]
	return errors.Join(kv.Iterate(keys.New('x'), nil, func(k, v []byte) bool {
		return !bytes.HasPrefix(k[9:], own) || give(k, v)
	}), bad)
}

// PairLog is the log whose bytes a pair of a run's state needs.
func PairLog(p Pair) (Item, bool) {
	if got := adoptedLogs([]Pair{p}); len(got) == 1 {
		return got[0], true
	}
	return Item{}, false
}

// PairBlobs are the blobs that a pair of a run's state refers to.
func PairBlobs(p Pair) ([]string, error) {
	if len(p.Key) == 0 || p.Key[0] != 'r' && p.Key[0] != 'd' {
		return nil, nil
	}
	kv := NewMemKV()
	var out []string
	err := kv.Set(p.Key, p.Value)
	return out, errors.Join(err, eachBlob(kv, func(digest string, _ bool) { out = append(out, digest) }))
}
