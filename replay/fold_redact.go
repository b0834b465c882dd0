package replay

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// maxRedactions is how many redactions of one log are remembered.
const maxRedactions = 16

// redactLogs puts twins in the place of logs. The id stays, so that groups and
// steps still name it, and so that a late copy of the original stays out; its
// bytes are no longer those of a committed log and go with the next compaction.
// Groups that hold one leave their tables: what a twin says was sampled was not.
func (f *fold) redactLogs(c RedactLogsCmd) (n int, err error) {
	r, err := f.run(c.Run)
	if err != nil {
		return 0, err
	}
	if err := checkID("Reason", c.Reason); err != nil {
		return 0, refuse(ErrInvalid, "redact logs of run %q: %w", c.Run, err)
	}
	if len(c.Logs) > maxGroups {
		return 0, refuse(ErrInvalid, "redact %d logs of run %q: at most %d at once", len(c.Logs), c.Run, maxGroups)
	}
	seen := map[string]bool{}
	for _, x := range c.Logs {
		if seen[x.LogID] {
			return 0, refuse(ErrInvalid, "redact log %q: it is listed twice", x.LogID)
		}
		seen[x.LogID] = true
	}
	for _, pass := range []func(*runState, *pb.ItemState, Redaction, string) (bool, error){f.checkRedact, f.redactLog} {
		n = 0
		for _, x := range c.Logs {
			s := new(pb.ItemState)
			ok, err := load(f.kv, itemKey(x.LogID), s)
			if err != nil {
				return 0, err
			}
			if !ok || s.Deleted {
				return 0, refuse(ErrNotFound, "redact log %q: there is none of this id (it may be deleted)", x.LogID)
			}
			done, err := pass(r, s, x, c.Reason)
			if err != nil {
				return 0, err
			}
			if done {
				n++
			}
		}
	}
	r.Redacted += uint64(n)
	return n, nil
}

func (f *fold) checkRedact(r *runState, s *pb.ItemState, x Redaction, reason string) (bool, error) {
	it := s.Item
	switch {
	case it.Run != r.run:
		return false, refuse(ErrInvalid, "redact log %q: it belongs to run %q, not %q", x.LogID, it.Run, r.run)
	case checkID("Digest", x.Digest) != nil || x.Size == 0:
		return false, refuse(ErrInvalid, "redact log %q: digest %q and size %d of the twin", x.LogID, cut(x.Digest, 40), x.Size)
	case it.Digest == x.Digest:
		return false, nil // done before
	case it.Digest != x.OldDigest:
		return false, refuse(ErrStale, "redact log %q: it has digest %q, the twin was made of %q (read it again)", x.LogID, it.Digest, cut(x.OldDigest, maxID))
	}
	return true, f.checkDelete(r, s, reason)
}

func (f *fold) redactLog(r *runState, s *pb.ItemState, x Redaction, reason string) (bool, error) {
	it := s.Item
	if it.Digest == x.Digest {
		return false, nil
	}
	if err := f.leaveTables(r, it, reason); err != nil {
		return false, err
	}
	s.Redactions = append(s.Redactions, &pb.Redaction{Digest: it.Digest, At: f.now, Reason: cut(reason, maxReasonBytes)})
	if n := len(s.Redactions); n > maxRedactions {
		s.Redactions = slices.Delete(s.Redactions, 0, n-maxRedactions)
	}
	old := proto.Clone(it).(*pb.Item)
	it.Digest, it.Size = x.Digest, x.Size
	now := itemFromPB(it)
	return true, firstError(f.refund(r, old), f.charge(r, &now), f.put(itemKey(it.LogId), s))
}

// forgetDeleted drops what remains of logs that were deleted before a moment.
func (f *fold) forgetDeleted(c ForgetDeletedCmd) (n int, err error) {
	if c.Limit < 1 || c.Limit > maxGroups {
		return 0, refuse(ErrInvalid, "forget deleted logs: limit = %d: want 1 to %d", c.Limit, maxGroups)
	}
	var ids []string
	var gone [][]byte
	prefix := keys.New('D')
	end := prefix.U64(uint64(max(nanos(c.Before), 0)))
	err = f.kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		if string(k) >= string(end) {
			return false
		}
		gone = append(gone, slices.Clone(k))
		ids = append(ids, keys.Unescape(k[len(prefix)+8:]))
		return len(gone) < c.Limit
	})
	for i := range gone {
		err = firstError(err, f.kv.Delete(gone[i]), f.kv.Delete(itemKey(ids[i])))
	}
	return len(gone), err
}
