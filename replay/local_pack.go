package replay

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/skein-rl/skein/replay/segment"
)

// Compaction packs the logs of a group: they share the prompt, which is then
// stored once (ADR 10). Appends don't, because the logs of a group come one by
// one and the first to come is acknowledged first.

const (
	packTrial = 8   // groups packed on trial
	packPays  = 0.8 // of the bytes as they are: from there on a file is rewritten for packing
)

// groups orders entries so that those of one group stand together, cut into
// groups that fit a pack. Logs that are not committed come by themselves.
func (l *Local) groups(es []segment.Entry) ([][]segment.Entry, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	kv := txnReader{txn, prefix}
	type named struct {
		name string
		e    segment.Entry
	}
	all := make([]named, len(es))
	for i, e := range es {
		all[i] = named{e: e}
		items, err := Items(kv, []string{e.ID})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err == nil {
			all[i].name = items[0].Run + "\x00" + items[0].Table + "\x00" + items[0].Group
		}
	}
	slices.SortStableFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(a.name, b.name), a.e.Pos.Compare(b.e.Pos)) })
	var out [][]segment.Entry
	last, size := "", 0
	for _, n := range all {
		if n.name == "" || n.name != last || size+n.e.Size > segment.MaxPack {
			out, last, size = append(out, nil), n.name, 0
		}
		out[len(out)-1] = append(out[len(out)-1], n.e)
		size += n.e.Size
	}
	return out, nil
}

// packingPays says whether a file's logs, packed by group, would take so much less
// that it should be rewritten: judged by a few of its groups that are not packed
// yet, and by how much of the file such groups are.
func (l *Local) packingPays(es []segment.Entry) (bool, error) {
	groups, err := l.groups(es)
	if err != nil {
		return false, err
	}
	var all, open, before, after float64
	var candidates [][]segment.Entry
	for _, g := range groups {
		size, packed := 0, false
		for _, e := range g {
			size, packed = size+e.Size, packed || e.Packed
		}
		all += float64(size)
		if len(g) > 1 && !packed {
			open, candidates = open+float64(size), append(candidates, g)
		}
	}
	if len(candidates) == 0 {
		return false, nil
	}
	for i := range min(packTrial, len(candidates)) { // spread over the file
		g, err := l.readGroup(candidates[i*len(candidates)/min(packTrial, len(candidates))])
		if err != nil {
			return false, err
		}
		together, alone, err := segment.Packed(g)
		if err != nil {
			return false, err
		}
		before, after = before+float64(alone), after+float64(together)
	}
	share := open / all
	return 1-share*(1-after/before) <= packPays, nil
}

func (l *Local) readGroup(es []segment.Entry) (segment.Group, error) {
	g := make(segment.Group, len(es))
	for i, e := range es {
		var err error
		if g[i], err = l.seg.ReadStored(e.Pos); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// copyOut appends records again, packed by group where that pays; their new places
// replace the old ones in the index. It returns the bytes written.
func (l *Local) copyOut(ctx context.Context, es []segment.Entry) (written int64, err error) {
	groups, err := l.groups(es)
	if err != nil {
		return 0, err
	}
	var batch []segment.Group
	size := 0
	flush := func() error {
		n, err := l.seg.AppendGroups(ctx, batch)
		written += int64(n)
		batch, size = nil, 0
		return storageError(err)
	}
	for _, g := range groups {
		recs, err := l.readGroup(g)
		if err != nil {
			return written, err
		}
		batch = append(batch, recs)
		for _, r := range recs {
			size += len(r.Bytes) + len(r.Zstd)
		}
		if size >= compactBatch {
			if err := flush(); err != nil {
				return written, err
			}
		}
	}
	return written, flush()
}
