package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// Source is the store that is backed up.
type Source interface {
	Snapshot(ctx context.Context) (io.ReadCloser, error)
	ReadExact(ctx context.Context, logs []replay.Exact) ([]replay.Record, error)
	GetBlob(ctx context.Context, digest string) ([]byte, error)
}

// Manifest is one backup.
type Manifest struct {
	Format  int       `json:"format"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Index   uint64    `json:"raft_index"` // of the state
	State   []string  `json:"state"`      // digests of the pieces, in order
	Packs   []string  `json:"packs"`      // that hold its logs, among others
	Blobs   []string  `json:"blobs"`
	Logs    int       `json:"logs"`
	Bytes   int64     `json:"bytes"` // of the logs
	// What this backup copied; the rest was there.
	NewLogs   int   `json:"new_logs"`
	NewBlobs  int   `json:"new_blobs"`
	NewStored int64 `json:"new_stored_bytes"` // as stored in the target
}

const (
	manifestFormat = 1
	statePiece     = 16 << 20
	readBatch      = 128 // logs asked for at once
	// snapshots a backup begins again with when logs vanish under it
	maxSnapshots = 4
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// Options of a backup.
type Options struct {
	Name string // "" = the time, as 20260102T150405Z
	// Progress, when set, is told how far it is: logs and blobs copied, of all
	// that have to be.
	Progress func(done, all int)
}

// Create makes a backup while the store is in use. It is consistent as of one
// raft index; what the target has already is not copied again. After an
// interruption call it again.
func Create(ctx context.Context, src Source, t Target, o Options) (Manifest, error) {
	m := Manifest{Format: manifestFormat, Name: o.Name, Created: time.Now().UTC().Truncate(time.Second)}
	if m.Name == "" {
		m.Name = m.Created.Format("20060102T150405Z")
	}
	if !validName.MatchString(m.Name) {
		return m, fmt.Errorf("backup: name %q: use up to 100 letters, digits, '.', '_' and '-'", m.Name)
	}
	if err := claim(ctx, t); err != nil {
		return m, err
	}
	switch _, err := t.Get(ctx, nameKey(m.Name)); {
	case err == nil:
		return m, fmt.Errorf("backup: %s has a backup %q: choose another name", t, m.Name)
	case !errors.Is(err, ErrNotFound):
		return m, err
	}
	known, err := knownLogs(ctx, t)
	if err != nil {
		return m, err
	}
	for try := 1; ; try++ {
		lost, err := m.copyAll(ctx, src, t, known, o)
		if err != nil {
			return m, err
		}
		if len(lost) == 0 {
			break
		}
		// Deleted or redacted, and compacted away, since the snapshot was taken:
		// a newer state does not have them.
		if try == maxSnapshots {
			return m, fmt.Errorf("backup: %d logs are on no node, the first is %q: run skein replay verify and repair", len(lost), lost[0].LogID)
		}
	}
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return m, err
	}
	return m, t.Put(ctx, nameKey(m.Name), append(b, '\n'))
}

// knownLogs says in which pack of the target each log is.
func knownLogs(ctx context.Context, t Target) (map[replay.Exact]string, error) {
	packs, err := listPacks(ctx, t)
	if err != nil {
		return nil, err
	}
	known := map[replay.Exact]string{}
	for digest := range packs {
		index, err := getIndex(ctx, t, digest)
		if err != nil {
			return nil, err
		}
		for _, e := range index {
			known[replay.Exact{LogID: e.LogID, Digest: e.Digest}] = digest
		}
	}
	return known, nil
}

// listPacks lists the packs that have an index, with the time it was written.
func listPacks(ctx context.Context, t Target) (map[string]time.Time, error) {
	out := map[string]time.Time{}
	err := t.List(ctx, "packs/", func(o Object) error {
		if name, ok := strings.CutSuffix(o.Key, ".idx"); ok {
			out[blob.Prefix+strings.TrimPrefix(name, "packs/")] = o.Modified
		}
		return nil
	})
	return out, err
}

// copyAll takes a snapshot and copies what it needs. lost are logs that no node
// has any more.
func (m *Manifest) copyAll(ctx context.Context, src Source, t Target, known map[replay.Exact]string, o Options) (lost []replay.Exact, err error) {
	m.State, m.Packs, m.Blobs, m.Logs, m.Bytes = nil, nil, nil, 0, 0
	used := map[string]bool{}
	var todo []replay.Exact
	blobs, err := m.copyState(ctx, src, t, func(x replay.Exact, size uint32) error {
		m.Logs++
		m.Bytes += int64(size)
		if pack, ok := known[x]; ok {
			used[pack] = true
		} else {
			todo = append(todo, x)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	if err := t.List(ctx, "blobs/", func(o Object) error {
		have[blob.Prefix+strings.TrimPrefix(o.Key, "blobs/")] = true
		return nil
	}); err != nil {
		return nil, err
	}
	var missing []string
	for _, d := range blobs {
		m.Blobs = append(m.Blobs, d)
		if !have[d] {
			missing = append(missing, d)
		}
	}
	all, done := len(todo)+len(missing), 0
	step := func(n int) {
		if done += n; o.Progress != nil {
			o.Progress(done, all)
		}
	}
	step(0)
	if lost, err = m.copyLogs(ctx, src, t, todo, known, used, step); err != nil {
		return nil, err
	}
	for _, d := range missing {
		data, err := src.GetBlob(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("backup: blob %s: %w", d, err)
		}
		if err := t.Put(ctx, blobKey(d), data); err != nil {
			return nil, err
		}
		m.NewBlobs++
		m.NewStored += int64(len(data))
		step(1)
	}
	for p := range used {
		m.Packs = append(m.Packs, p)
	}
	slices.Sort(m.Packs)
	return lost, nil
}

// copyState stores the snapshot in pieces as it is read.
func (m *Manifest) copyState(ctx context.Context, src Source, t Target, fn func(replay.Exact, uint32) error) (blobs []string, err error) {
	r, err := src.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	w := &pieceWriter{ctx: ctx, t: t}
	m.Index, blobs, err = replay.SnapshotContents(io.TeeReader(r, w), fn)
	if err == nil {
		// The reader ahead may not have seen the very end.
		_, err = io.Copy(w, r)
	}
	if err == nil {
		err = w.flush()
	}
	m.State, m.NewStored = w.pieces, m.NewStored+w.stored
	return blobs, err
}

// pieceWriter stores what is written to it in objects of statePiece bytes.
type pieceWriter struct {
	ctx    context.Context
	t      Target
	buf    bytes.Buffer
	pieces []string
	stored int64
}

func (w *pieceWriter) Write(b []byte) (int, error) {
	w.buf.Write(b)
	for w.buf.Len() >= statePiece {
		if err := w.put(w.buf.Next(statePiece)); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (w *pieceWriter) flush() error {
	if w.buf.Len() == 0 {
		return nil
	}
	return w.put(w.buf.Bytes())
}

func (w *pieceWriter) put(b []byte) error {
	d := blob.Digest(b)
	w.pieces, w.stored = append(w.pieces, d), w.stored+int64(len(b))
	return w.t.Put(w.ctx, stateKey(d), bytes.Clone(b))
}

func (m *Manifest) copyLogs(ctx context.Context, src Source, t Target, todo []replay.Exact, known map[replay.Exact]string, used map[string]bool, step func(int)) (lost []replay.Exact, err error) {
	var recs []replay.Record
	size := 0
	flush := func() error {
		if len(recs) == 0 {
			return nil
		}
		digest, stored, err := putPack(ctx, t, recs)
		if err != nil {
			return err
		}
		used[digest] = true
		for _, r := range recs {
			known[replay.Exact{LogID: r.Item.LogID, Digest: r.Item.Digest}] = digest
		}
		m.NewLogs += len(recs)
		m.NewStored += stored
		recs, size = nil, 0
		return nil
	}
	for part := range slices.Chunk(todo, readBatch) {
		got, err := src.ReadExact(ctx, part)
		if err != nil {
			return nil, err
		}
		found := map[replay.Exact]bool{}
		for _, r := range got {
			found[replay.Exact{LogID: r.Item.LogID, Digest: r.Item.Digest}] = true
			recs, size = append(recs, r), size+len(r.Bytes)
		}
		for _, x := range part {
			if !found[x] {
				lost = append(lost, x)
			}
		}
		if size >= packBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		step(len(part))
	}
	return lost, flush()
}

// claim marks the target as one of backups, or checks that it is.
func claim(ctx context.Context, t Target) error {
	const key, content = "skein-backup.json", "{\"format\": 1}\n"
	b, err := t.Get(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return t.Put(ctx, key, []byte(content))
	case err != nil:
		return err
	}
	var v struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &v); err != nil || v.Format != manifestFormat {
		return fmt.Errorf("backup: %s holds backups of format %d, this build reads %d (%w)", t, v.Format, manifestFormat, errors.Join(err, errors.New("use the build that wrote it")))
	}
	return nil
}

// List lists the backups of a target, oldest first.
func List(ctx context.Context, t Target) ([]Manifest, error) {
	var names []string
	if err := t.List(ctx, "backups/", func(o Object) error {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(o.Key, "backups/"), ".json"); ok {
			names = append(names, name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]Manifest, 0, len(names))
	for _, name := range names {
		m, err := Get(ctx, t, name)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	slices.SortStableFunc(out, func(a, b Manifest) int { return a.Created.Compare(b.Created) })
	return out, nil
}

// Get returns a backup by name; "" = the newest. ErrNotFound.
func Get(ctx context.Context, t Target, name string) (Manifest, error) {
	if name == "" {
		all, err := List(ctx, t)
		if err != nil {
			return Manifest{}, err
		}
		if len(all) == 0 {
			return Manifest{}, fmt.Errorf("%w: %s holds no backup", ErrNotFound, t)
		}
		return all[len(all)-1], nil
	}
	if !validName.MatchString(name) {
		return Manifest{}, fmt.Errorf("backup: name %q: use up to 100 letters, digits, '.', '_' and '-'", name)
	}
	b, err := t.Get(ctx, nameKey(name))
	if errors.Is(err, ErrNotFound) {
		return Manifest{}, fmt.Errorf("%w: %s holds no backup %q (skein replay backups lists them)", ErrNotFound, t, name)
	}
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("backup: manifest of %q in %s: %w", name, t, err)
	}
	if m.Format != manifestFormat {
		return m, fmt.Errorf("backup: %q in %s has format %d, this build reads %d (use the build that wrote it)", name, t, m.Format, manifestFormat)
	}
	return m, nil
}
