package transfer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// Manifest is what an export says about itself.
type Manifest struct {
	Version  int             `json:"version"`
	Run      string          `json:"run"`
	Format   string          `json:"format"` // of the files: jsonl or parquet
	Filter   Filter          `json:"filter"`
	Started  time.Time       `json:"started"`
	Complete bool            `json:"complete"`
	Token    string          `json:"token"` // behind the newest log looked at
	Files    []File          `json:"files"`
	Logs     int             `json:"logs"`
	Bytes    int64           `json:"bytes"`
	Groups   int             `json:"groups"`
	GroupSum string          `json:"groups_digest,omitempty"` // of groups.jsonl
	Spec     RunSpec         `json:"spec"`
	Policy   Policy          `json:"policy"` // the newest
	Tables   []ExportedTable `json:"tables"`
}

// File is one finished file of an export.
type File struct {
	Name   string `json:"name"`
	Logs   int    `json:"logs"`
	Digest string `json:"digest"`
}

// RunSpec is replay.RunSpec as JSON.
type RunSpec struct {
	Config          []byte        `json:"config"` // YAML, base64
	GroupSize       uint32        `json:"group_size"`
	GroupsPerStep   uint32        `json:"groups_per_step"`
	MaxStaleness    uint64        `json:"max_staleness"`
	TicketTTL       time.Duration `json:"ticket_ttl_ns"`
	MaxAttempts     uint32        `json:"max_attempts"`
	BaseDigest      string        `json:"base_digest"`
	StartAdapter    string        `json:"start_adapter"`
	KeepCheckpoints uint32        `json:"keep_checkpoints"`
}

// Policy is replay.Policy as JSON.
type Policy struct {
	Version uint64 `json:"version"`
	Adapter string `json:"adapter"`
	Step    uint64 `json:"step"`
}

// ExportedTable is a configured table.
type ExportedTable struct {
	Table  string       `json:"table"`
	Config table.Config `json:"config"`
}

const manifestVersion = 1

// ExportOptions say what is exported, and how.
type ExportOptions struct {
	Format string // JSONL or Parquet
	Filter Filter
	// FileBytes is how many bytes of logs go into one file, about; 0 = 256 MiB.
	// An interruption costs at most one file.
	FileBytes int64
	// Progress, when set, is told how many logs were written.
	Progress func(logs int)
}

// ExportStore is what Export needs of a store.
type ExportStore interface {
	Store
	Tables(ctx context.Context, run string) ([]replay.TableStatus, error)
	TableGroups(ctx context.Context, run, name, cursor string, limit int) ([]replay.TableGroup, string, error)
}

// Export writes logs of a run to a folder, in order of acceptance, and then the
// groups of its tables as they are at that time. The store may be in use: logs
// accepted meanwhile may be in it or not. A folder with an unfinished export of
// the same run, filter and format is gone on with.
func Export(ctx context.Context, st ExportStore, run, dir string, o ExportOptions) (Manifest, error) {
	if o.FileBytes == 0 {
		o.FileBytes = 256 << 20
	}
	if o.Format != JSONL && o.Format != Parquet {
		return Manifest{}, fmt.Errorf("transfer: format %q: want %s or %s", o.Format, JSONL, Parquet)
	}
	if err := o.Filter.Validate(); err != nil {
		return Manifest{}, fmt.Errorf("transfer: filter: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Manifest{}, fmt.Errorf("transfer: %w", err)
	}
	e := &export{st: st, dir: dir, o: o}
	if err := e.begin(ctx, run); err != nil {
		return e.m, err
	}
	if e.m.Complete {
		return e.m, fmt.Errorf("transfer: %s holds a complete export of run %q: name another folder", dir, run)
	}
	if err := e.logs(ctx); err != nil {
		if e.w != nil {
			err = errors.Join(err, e.w.abandon())
		}
		return e.m, err
	}
	if err := e.groups(ctx); err != nil {
		return e.m, err
	}
	e.m.Complete = true
	return e.m, e.save()
}

type export struct {
	st  ExportStore
	dir string
	o   ExportOptions
	m   Manifest
	w   *fileWriter // nil between files
}

func (e *export) begin(ctx context.Context, run string) error {
	old, err := ReadManifest(e.dir)
	switch {
	case err == nil:
		if old.Run != run || old.Format != e.o.Format || !reflect.DeepEqual(old.Filter, normal(e.o.Filter)) {
			return fmt.Errorf("transfer: %s holds an export of run %q as %s with another filter or format: name another folder", e.dir, old.Run, old.Format)
		}
		e.m = old
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if names, err := os.ReadDir(e.dir); err != nil || len(names) > 0 {
		return errors.Join(err, fmt.Errorf("transfer: %s is not empty and holds no export: name a new folder", e.dir))
	}
	s, err := e.st.Status(ctx, run)
	if err != nil {
		return err
	}
	e.m = Manifest{
		Version: manifestVersion, Run: run, Format: e.o.Format, Filter: normal(e.o.Filter), Started: time.Now().UTC(), Files: []File{},
		Spec: RunSpec{s.Spec.Config, s.Spec.GroupSize, s.Spec.GroupsPerStep, s.Spec.MaxStaleness, s.Spec.TicketTTL, s.Spec.MaxAttempts,
			s.Spec.BaseDigest, s.Spec.StartAdapter, s.Spec.KeepCheckpoints},
	}
	return e.save()
}

// normal is a filter as it reads back from JSON.
func normal(f Filter) Filter {
	b, err := json.Marshal(f)
	var out Filter
	if err != nil || json.Unmarshal(b, &out) != nil {
		return f
	}
	return out
}

// ReadManifest reads an export's manifest.
func ReadManifest(dir string) (Manifest, error) {
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("transfer: manifest in %s: %w", dir, err)
	}
	if m.Version != manifestVersion {
		return m, fmt.Errorf("transfer: %s is an export of version %d, this build reads %d (use the build that wrote it)", dir, m.Version, manifestVersion)
	}
	return m, nil
}

func (e *export) save() error {
	b, err := json.MarshalIndent(e.m, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(e.dir, "manifest.json")
	f, err := os.Create(path + ".new")
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = errors.Join(os.Rename(path+".new", path), syncDir(e.dir))
	}
	if err != nil {
		return fmt.Errorf("transfer: manifest: %w", err)
	}
	return nil
}

func (e *export) logs(ctx context.Context) error {
	token := e.m.Token
	err := Find(ctx, e.st, e.m.Run, token, e.o.Filter, true, func(found []Found, last string) error {
		for _, x := range found {
			if e.w == nil {
				var err error
				if e.w, err = newFileWriter(filepath.Join(e.dir, e.name()), e.o.Format); err != nil {
					return err
				}
			}
			if err := e.w.write(rowOf(x.Record)); err != nil {
				return fmt.Errorf("transfer: %w", err)
			}
		}
		token = last
		if e.o.Progress != nil {
			n := e.m.Logs
			if e.w != nil {
				n += e.w.rows
			}
			e.o.Progress(n)
		}
		if e.w != nil && e.w.size >= e.o.FileBytes {
			return e.finish(token)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.finish(token)
}

func (e *export) name() string { return fmt.Sprintf("logs-%05d.%s", len(e.m.Files), e.o.Format) }

// finish closes the current file, if there is one, and notes how far it got.
func (e *export) finish(token string) error {
	if w := e.w; w != nil {
		name := e.name()
		e.w = nil
		digest, err := w.close()
		if err != nil {
			return err
		}
		e.m.Files = append(e.m.Files, File{name, w.rows, digest})
		e.m.Logs += w.rows
		e.m.Bytes += w.size
	}
	e.m.Token = token
	return e.save()
}

// groups writes the groups of all tables, and the tables and policy into the
// manifest: all as they are now.
func (e *export) groups(ctx context.Context) error {
	s, err := e.st.Status(ctx, e.m.Run)
	if err != nil {
		return err
	}
	e.m.Policy = Policy{s.Latest.Version, s.Latest.Adapter, s.Latest.Step}
	ts, err := e.st.Tables(ctx, e.m.Run)
	if err != nil {
		return err
	}
	e.m.Tables = []ExportedTable{}
	names := []string{replay.TableTrain, replay.TableEval}
	for _, t := range ts {
		if t.Table != replay.TableTrain {
			e.m.Tables = append(e.m.Tables, ExportedTable{t.Table, t.Config})
			names = append(names, t.Table)
		}
	}
	path := filepath.Join(e.dir, "groups.jsonl")
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	buf := bufio.NewWriter(f)
	out := json.NewEncoder(buf)
	e.m.Groups = 0
	for _, name := range names {
		err = errors.Join(err, e.eachGroup(ctx, name, func(g replay.TableGroup) error {
			e.m.Groups++
			return out.Encode(groupLine{Table: name, Group: g.Group, State: g.State, Reason: g.Reason, Size: g.Size, LogIDs: g.LogIDs,
				Index: g.Seq, Priority: g.Priority, TimesSampled: g.TimesSampled, Inserted: g.Inserted})
		}))
	}
	err = errors.Join(err, buf.Flush())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		e.m.GroupSum, err = digestFile(path)
	}
	if err != nil {
		return fmt.Errorf("transfer: groups: %w", err)
	}
	return nil
}

// groupLine is a line of groups.jsonl; see replay.ImportGroup.
type groupLine struct {
	Table        string    `json:"table"`
	Group        string    `json:"group"`
	State        string    `json:"state"`
	Reason       string    `json:"reason,omitempty"`
	Size         uint32    `json:"size"`
	LogIDs       []string  `json:"log_ids"`
	Index        uint64    `json:"index"`
	Priority     float64   `json:"priority"`
	TimesSampled uint32    `json:"times_sampled"`
	Inserted     time.Time `json:"inserted,omitzero"`
}

func (e *export) eachGroup(ctx context.Context, name string, fn func(replay.TableGroup) error) error {
	for cursor := ""; ; {
		gs, next, err := e.st.TableGroups(ctx, e.m.Run, name, cursor, 500)
		if err != nil {
			return err
		}
		for _, g := range gs {
			if err := fn(g); err != nil {
				return err
			}
		}
		if cursor = next; next == "" {
			return nil
		}
	}
}
