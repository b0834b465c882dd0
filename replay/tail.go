package replay

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/skein-rl/skein/replay/internal/keys"
)

// A token is where a follower of a run stands: behind the item with a sequence
// number. It is "t1-SEQ-SCOPE-ITEM" in hexadecimal; SCOPE and ITEM are hashes of
// run and table and of the item's id, by which a token of something else is
// told. Tokens are opaque to followers.

// maxTail is how many items one call gives at most.
const maxTail = 4096

func hash32(parts ...string) uint32 {
	h := fnv.New32a()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return h.Sum32()
}

func makeToken(q TailRequest, seq uint64, logID string) string {
	return fmt.Sprintf("t1-%x-%08x-%08x", seq, hash32(q.Run, q.Table), hash32(logID))
}

// Tail lists items of a run behind a token, in order of acceptance: of one table
// or, with Table "", of all. Wait is the caller's business.
func Tail(kv Reader, q TailRequest) ([]TailItem, error) {
	r, err := readRun(kv, q.Run)
	if err != nil {
		return nil, err
	}
	if q.Limit < 0 {
		return nil, fmt.Errorf("%w: tail of run %q: limit = %d, want 0 (500) or more", ErrInvalid, q.Run, q.Limit)
	}
	limit := q.Limit
	if limit == 0 {
		limit = 500
	}
	limit = min(limit, maxTail)
	from, err := tokenSeq(kv, q, r.NextSeq)
	if err != nil {
		return nil, err
	}
	tables := []string{q.Table}
	if q.Table == "" {
		if tables, err = TablesWithLogs(kv, q.Run); err != nil {
			return nil, err
		}
	}
	type at struct {
		seq uint64
		id  string
	}
	var found []at
	for _, t := range tables {
		n := 0
		prefix := scanPrefix(q.Run, t)
		if err := kv.Iterate(prefix, prefix.U64(from), func(k, v []byte) bool {
			found = append(found, at{versionOf(k), string(v)})
			n++
			return n < limit
		}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found, func(a, b at) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	found = found[:min(limit, len(found))]
	ids := make([]string, len(found))
	for i, f := range found {
		ids[i] = f.id
	}
	items, err := Items(kv, ids)
	if err != nil {
		return nil, err
	}
	out := make([]TailItem, len(items))
	for i, it := range items {
		out[i] = TailItem{it, makeToken(q, found[i].seq, it.LogID)}
	}
	return out, nil
}

// tokenSeq is the first sequence number behind a token.
func tokenSeq(kv Reader, q TailRequest, next uint64) (uint64, error) {
	if q.Token == "" {
		return 0, nil
	}
	var seq uint64
	var scope, item uint32
	if n, err := fmt.Sscanf(q.Token, "t1-%x-%x-%x", &seq, &scope, &item); err != nil || n != 3 || fmt.Sprintf("t1-%x-%08x-%08x", seq, scope, item) != q.Token {
		return 0, fmt.Errorf("%w: token %q: it is none (use one that follow printed)", ErrInvalid, cut(q.Token, 80))
	}
	if scope != hash32(q.Run, q.Table) {
		return 0, fmt.Errorf("%w: token %q is not of run %q, table %q (follow with the run and table it was printed for)", ErrInvalid, q.Token, q.Run, q.Table)
	}
	other := seq >= next
	tables := []string{q.Table}
	if q.Table == "" {
		var err error
		if tables, err = TablesWithLogs(kv, q.Run); err != nil {
			return 0, err
		}
	}
	for _, t := range tables {
		id, ok, err := kv.Get(scanPrefix(q.Run, t).U64(seq))
		if err != nil {
			return 0, err
		}
		other = other || ok && hash32(string(id)) != item
	}
	if other {
		return 0, fmt.Errorf("%w: token %q is of another history of run %q: this store was restored from a backup taken before it (follow again from the start, or from a token that is older)", ErrStale, q.Token, q.Run)
	}
	return seq + 1, nil
}

// TablesWithLogs lists the tables that logs of a run were appended to, those
// that still hold one.
func TablesWithLogs(kv Reader, run string) (out []string, err error) {
	if _, err := readRun(kv, run); err != nil {
		return nil, err
	}
	prefix := keys.New('i').Str(run)
	from := prefix
	for {
		name, found := "", false
		if err := kv.Iterate(prefix, from, func(k, _ []byte) bool {
			name, found = keys.Unescape(k[len(prefix):]), true
			return false
		}); err != nil || !found {
			return out, err
		}
		out = append(out, name)
		// Past every key of this table: none has a number above.
		from = scanPrefix(run, name).U64(1<<64 - 1).Byte(0)
	}
}
