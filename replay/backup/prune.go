package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/replay"
)

// PruneOptions say what goes.
type PruneOptions struct {
	Keep  int      // how many of the newest backups stay; 0 = all but Names
	Names []string // backups to take away
	// Purge rewrites packs that hold logs of no backup that stays, so that their
	// bytes are gone from the target.
	Purge bool
	// Grace spares what no backup refers to for so long: one may be on its way.
	// 0 = 24 h.
	Grace time.Duration
	// Now is the clock; zero = time.Now.
	Now time.Time
}

// PruneReport says what went.
type PruneReport struct {
	Backups []string `json:"backups"`
	Objects int      `json:"objects"`
	Bytes   int64    `json:"bytes"`
	Packs   int      `json:"packs_rewritten"`
}

// Prune takes backups away, and then every object that none of the others
// refers to. A crash anywhere leaves objects that the next call removes.
func Prune(ctx context.Context, t Target, o PruneOptions) (PruneReport, error) {
	rep := PruneReport{Backups: []string{}}
	if o.Keep < 0 || o.Keep == 0 && len(o.Names) == 0 && !o.Purge {
		return rep, fmt.Errorf("backup: prune: keep = %d and no names: say how many of the newest stay, or which go", o.Keep)
	}
	if o.Grace == 0 {
		o.Grace = 24 * time.Hour
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	all, err := List(ctx, t)
	if err != nil {
		return rep, err
	}
	for _, name := range o.Names {
		if !slices.ContainsFunc(all, func(m Manifest) bool { return m.Name == name }) {
			return rep, fmt.Errorf("%w: %s holds no backup %q", ErrNotFound, t, name)
		}
	}
	var stay []Manifest
	for i, m := range all {
		if slices.Contains(o.Names, m.Name) || o.Keep > 0 && i < len(all)-o.Keep {
			if err := t.Delete(ctx, nameKey(m.Name)); err != nil {
				return rep, err
			}
			rep.Backups = append(rep.Backups, m.Name)
			continue
		}
		stay = append(stay, m)
	}
	if o.Purge {
		if err := purge(ctx, t, stay, &rep); err != nil {
			return rep, err
		}
	}
	return rep, sweep(ctx, t, stay, o, &rep)
}

// sweep deletes what no manifest refers to.
func sweep(ctx context.Context, t Target, stay []Manifest, o PruneOptions, rep *PruneReport) error {
	used := map[string]bool{}
	for _, m := range stay {
		for _, d := range m.State {
			used[stateKey(d)] = true
		}
		for _, d := range m.Packs {
			used[packKey(d)], used[indexKey(d)] = true, true
		}
		for _, d := range m.Blobs {
			used[blobKey(d)] = true
		}
	}
	var gone []Object
	for _, prefix := range []string{"packs/", "states/", "blobs/"} {
		if err := t.List(ctx, prefix, func(x Object) error {
			if !used[x.Key] && o.Now.Sub(x.Modified) >= o.Grace {
				gone = append(gone, x)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	// Indexes first: a pack without one does not count.
	slices.SortStableFunc(gone, func(a, b Object) int {
		return strings.Compare(suffixOrder(a.Key), suffixOrder(b.Key))
	})
	for _, x := range gone {
		if err := t.Delete(ctx, x.Key); err != nil {
			return err
		}
		rep.Objects++
		rep.Bytes += x.Size
	}
	return nil
}

func suffixOrder(key string) string {
	if strings.HasSuffix(key, ".idx") {
		return "0"
	}
	return "1"
}

// purge rewrites packs that hold logs which no remaining backup has: the new
// pack first, then the manifests, then the old pack goes.
func purge(ctx context.Context, t Target, stay []Manifest, rep *PruneReport) error {
	need := map[replay.Exact]bool{}
	for _, m := range stay {
		if _, _, err := replay.SnapshotContents(Open(ctx, t, m).State(), func(x replay.Exact, _ uint32) error {
			need[x] = true
			return nil
		}); err != nil {
			return fmt.Errorf("backup %q: state: %w", m.Name, err)
		}
	}
	packs, err := listPacks(ctx, t)
	if err != nil {
		return err
	}
	for digest := range packs {
		users := slices.DeleteFunc(slices.Clone(stay), func(m Manifest) bool { return !slices.Contains(m.Packs, digest) })
		if len(users) == 0 {
			continue // sweep takes it when it is old enough
		}
		index, err := getIndex(ctx, t, digest)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(index, func(e packEntry) bool { return !need[replay.Exact{LogID: e.LogID, Digest: e.Digest}] }) {
			continue
		}
		b, err := getChecked(ctx, t, packKey(digest), digest)
		if err != nil {
			return err
		}
		recs, err := decodePack(b)
		if err != nil {
			return err
		}
		recs = slices.DeleteFunc(recs, func(r replay.Record) bool {
			return !need[replay.Exact{LogID: r.Item.LogID, Digest: r.Item.Digest}]
		})
		next := ""
		if len(recs) > 0 {
			if next, _, err = putPack(ctx, t, recs); err != nil {
				return err
			}
		}
		for i, m := range stay {
			if !slices.Contains(m.Packs, digest) {
				continue
			}
			m.Packs = slices.DeleteFunc(slices.Clone(m.Packs), func(p string) bool { return p == digest || p == next })
			if next != "" {
				m.Packs = append(m.Packs, next)
				slices.Sort(m.Packs)
			}
			data, err := json.MarshalIndent(m, "", " ")
			if err != nil {
				return err
			}
			if err := t.Put(ctx, nameKey(m.Name), append(data, '\n')); err != nil {
				return err
			}
			stay[i] = m
		}
		if err := errors.Join(t.Delete(ctx, indexKey(digest)), t.Delete(ctx, packKey(digest))); err != nil {
			return err
		}
		rep.Packs++
	}
	return nil
}
