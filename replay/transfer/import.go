package transfer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// ImportStore is what Import needs of a store.
type ImportStore interface {
	Runs(ctx context.Context) ([]string, error)
	CreateRun(ctx context.Context, spec replay.RunSpec) error
	Tables(ctx context.Context, run string) ([]replay.TableStatus, error)
	SetTable(ctx context.Context, run, name string, cfg table.Config, version uint64) (uint64, error)
	Import(ctx context.Context, in replay.Import) (replay.ImportResult, error)
}

// ImportOptions say where to.
type ImportOptions struct {
	Run    string // "" = the run it was exported from
	Filter Filter // what of it; groups that lack a log then are left out
	// Tenant whose run it becomes when it is new.
	Tenant   string
	Progress func(logs, all int)
}

// ImportReport counts what was done.
type ImportReport struct {
	Run        string   `json:"run"`
	Created    bool     `json:"created"` // the run
	Logs       int      `json:"logs"`
	Duplicates int      `json:"duplicates"` // there already
	Groups     int      `json:"groups"`
	Present    int      `json:"groups_present"`    // there already
	Incomplete int      `json:"groups_incomplete"` // without all their logs
	Rejected   int      `json:"rejected"`
	Reasons    []string `json:"reasons,omitempty"` // of the first rejected ones
	Tables     []string `json:"tables,omitempty"`  // set up
	Kept       []string `json:"tables_kept,omitempty"`
}

const (
	maxReasons = 20
	// importBytes and importLogs bound one call.
	importBytes = 4 << 20
	importLogs  = 256
	busyWait    = 200 * time.Millisecond
)

// Import stores what an export holds: ids, groups, rewards and the state of
// tables are kept, and every log's bytes are verified. The run is made when it
// is not there. Importing again goes over what is there.
func Import(ctx context.Context, st ImportStore, dir string, o ImportOptions) (ImportReport, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return ImportReport{}, fmt.Errorf("transfer: %s is no export: %w", dir, err)
	}
	if !m.Complete {
		return ImportReport{}, fmt.Errorf("transfer: the export in %s is not complete: run skein replay export again to finish it", dir)
	}
	if err := o.Filter.Validate(); err != nil {
		return ImportReport{}, fmt.Errorf("transfer: filter: %w", err)
	}
	for _, f := range append(slices.Clone(m.Files), File{Name: "groups.jsonl", Digest: m.GroupSum}) {
		got, err := digestFile(filepath.Join(dir, filepath.Base(f.Name)))
		if err == nil && got != f.Digest {
			err = fmt.Errorf("its contents have digest %s, not %s: it was changed or damaged", got, f.Digest)
		}
		if err != nil {
			return ImportReport{}, fmt.Errorf("transfer: %s of %s: %w", f.Name, dir, err)
		}
	}
	im := &importer{st: st, dir: dir, o: o, m: m, rep: ImportReport{Run: m.Run}}
	if o.Run != "" {
		im.rep.Run = o.Run
	}
	err = im.run(ctx)
	return im.rep, err
}

type importer struct {
	st  ImportStore
	dir string
	o   ImportOptions
	m   Manifest
	rep ImportReport

	batch []replay.Record
	size  int
	seen  int
}

func (im *importer) run(ctx context.Context) error {
	runs, err := im.st.Runs(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(runs, im.rep.Run) {
		s := im.m.Spec
		// The start adapter's bytes are not in an export: the policy says which
		// one the newest logs were sampled with.
		spec := replay.RunSpec{Run: im.rep.Run, Config: s.Config, GroupSize: s.GroupSize, GroupsPerStep: s.GroupsPerStep, MaxStaleness: s.MaxStaleness,
			TicketTTL: s.TicketTTL, MaxAttempts: s.MaxAttempts, BaseDigest: s.BaseDigest, KeepCheckpoints: s.KeepCheckpoints, Tenant: im.o.Tenant}
		if err := im.st.CreateRun(ctx, spec); err != nil {
			return err
		}
		im.rep.Created = true
	}
	if err := im.tables(ctx); err != nil {
		return err
	}
	for _, f := range im.m.Files {
		if err := readFile(filepath.Join(im.dir, filepath.Base(f.Name)), im.m.Format, func(rows []Row) error { return im.rows(ctx, rows) }); err != nil {
			return err
		}
	}
	if err := im.flush(ctx); err != nil {
		return err
	}
	return im.groups(ctx)
}

// tables sets up those that are not there; others keep their settings.
func (im *importer) tables(ctx context.Context) error {
	have, err := im.st.Tables(ctx, im.rep.Run)
	if err != nil {
		return err
	}
	for _, t := range im.m.Tables {
		if slices.ContainsFunc(have, func(s replay.TableStatus) bool { return s.Table == t.Table }) {
			im.rep.Kept = append(im.rep.Kept, t.Table)
			continue
		}
		if _, err := im.st.SetTable(ctx, im.rep.Run, t.Table, t.Config, 0); err != nil {
			return err
		}
		im.rep.Tables = append(im.rep.Tables, t.Table)
	}
	return nil
}

func (im *importer) rows(ctx context.Context, rows []Row) error {
	for _, row := range rows {
		im.seen++
		r, err := row.record()
		if err != nil {
			return err
		}
		match := im.o.Filter.Match(r.Item)
		if match {
			if match, err = im.o.Filter.MatchLog(r.Bytes); err != nil {
				return fmt.Errorf("log %q: %w", r.Item.LogID, err)
			}
		}
		if !match {
			continue
		}
		r.Item.Run = im.rep.Run
		im.batch, im.size = append(im.batch, r), im.size+len(r.Bytes)
		if im.size >= importBytes || len(im.batch) >= importLogs {
			if err := im.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (im *importer) policy() replay.Policy {
	return replay.Policy{Run: im.rep.Run, Version: im.m.Policy.Version, Adapter: im.m.Policy.Adapter, Step: im.m.Policy.Step}
}

// flush imports the batch; what a quota holds back is sent again.
func (im *importer) flush(ctx context.Context) error {
	for len(im.batch) > 0 {
		res, err := im.st.Import(ctx, replay.Import{Run: im.rep.Run, Records: im.batch, Policy: im.policy()})
		if err != nil {
			return err
		}
		var again []replay.Record
		for i, r := range res.Records {
			switch {
			case r.Busy != "":
				again = append(again, im.batch[i])
			case r.Rejected != "":
				im.reject(r.Rejected)
			case r.Duplicate:
				im.rep.Duplicates++
			default:
				im.rep.Logs++
			}
		}
		if im.batch = again; len(again) > 0 {
			if err := wait(ctx, busyWait); err != nil {
				return fmt.Errorf("transfer: import is held back: %s: %w", res.Records[len(res.Records)-1].Busy, err)
			}
		}
	}
	im.batch, im.size = nil, 0
	if im.o.Progress != nil {
		im.o.Progress(im.seen, im.m.Logs)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (im *importer) reject(why string) {
	im.rep.Rejected++
	if len(im.rep.Reasons) < maxReasons {
		im.rep.Reasons = append(im.rep.Reasons, why)
	}
}

// groups imports the groups in order of their insertion, so that a table gives
// them out in the order it had.
func (im *importer) groups(ctx context.Context) error {
	f, err := os.Open(filepath.Join(im.dir, "groups.jsonl"))
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	var all []replay.ImportGroup
	s := bufio.NewScanner(f)
	s.Buffer(make([]byte, 1<<16), 64<<20)
	for s.Scan() {
		var g groupLine
		if err := json.Unmarshal(s.Bytes(), &g); err != nil {
			return errors.Join(fmt.Errorf("transfer: groups.jsonl: %w", err), f.Close())
		}
		all = append(all, replay.ImportGroup(g))
	}
	if err := errors.Join(s.Err(), f.Close()); err != nil {
		return fmt.Errorf("transfer: groups.jsonl: %w", err)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Index < all[j].Index })
	for part := range slices.Chunk(all, importLogs) {
		res, err := im.st.Import(ctx, replay.Import{Run: im.rep.Run, Groups: part, Policy: im.policy()})
		if err != nil {
			return err
		}
		for _, r := range res.Groups {
			switch {
			case strings.HasPrefix(r.Rejected, replay.ErrNotFound.Error()):
				im.rep.Incomplete++
			case r.Rejected != "":
				im.reject(r.Rejected)
			case r.Duplicate:
				im.rep.Present++
			default:
				im.rep.Groups++
			}
		}
	}
	return nil
}
