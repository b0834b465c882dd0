package project

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/internal/redact"
	"github.com/skein-rl/skein/replay"
)

// BundleOptions say what a debug bundle is made of.
type BundleOptions struct {
	// Dir is the folder of a run or node, whose logs and metrics go in; "" = none.
	Dir string
	// Store is asked for runs and nodes; nil = it cannot be reached, and
	// Unreachable says why.
	Store       *Store
	Unreachable error
	// Note is the user's own description of the fault.
	Note    string
	Version string
}

// Bounds of a bundle.
const (
	bundleLog     = 1 << 20 // bytes of each log file: its end
	bundleSteps   = 50      // newest of each run
	bundleFailed  = 200     // failed rollouts of each run: who and why, no content
	bundleScrape  = 5 * time.Second
	bundleEntries = 4000 // of the list of files
)

// bundle gathers the parts of a zip. What cannot be had becomes an entry of its
// list of problems.
type bundle struct {
	zip      *zip.Writer
	problems []string
	secrets  int
}

const bundleReadme = `What skein debug bundle put together. It holds no prompts, completions, weights, keys or tokens; what looked
like a secret in logs and configurations is replaced by ` + redact.Mark + `: read it before you send it all the same.

about.json      version, build, time, the note, what was replaced and what could not be had
doctor.json     what this machine can do
overview.json   runs with their counters, tables and policies; processes as the leader sees them
runs/RUN/       config.yaml, steps.jsonl (newest), failed.jsonl (failed rollouts: who and why)
logs/           the ends of the processes' logs
metrics/        what each process of the folder served to Prometheus
files.txt       names and sizes in the folder
`

// WriteBundle writes everything needed to file a bug as a zip. It returns what
// could not be had, which is in the bundle too.
func WriteBundle(ctx context.Context, w io.Writer, o BundleOptions) ([]string, error) {
	b := &bundle{zip: zip.NewWriter(w)}
	b.text("README.txt", bundleReadme)
	b.json("doctor.json", Doctor(ctx, dirOr(o.Dir)))
	b.problem("store", o.Unreachable)
	if o.Store != nil {
		over, err := Look(ctx, o.Store)
		b.problem("overview", err)
		b.json("overview.json", over)
		for _, r := range over.Runs {
			b.run(ctx, o.Store, r.Status)
		}
	}
	if o.Dir != "" {
		b.folder(ctx, o.Dir)
	}
	info, _ := debug.ReadBuildInfo()
	b.json("about.json", map[string]any{
		"version": o.Version, "build": info, "at": time.Now().UTC(), "note": o.Note,
		"problems": b.problems, "replaced": b.secrets,
	})
	return b.problems, b.zip.Close()
}

func dirOr(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func (b *bundle) problem(what string, err error) {
	if err != nil {
		b.problems = append(b.problems, fmt.Sprintf("%s: %v", what, err))
	}
}

// text adds an entry, secrets removed.
func (b *bundle) text(name, text string) {
	clean, found := redact.Text(text)
	b.secrets += found
	w, err := b.zip.Create(name)
	if err == nil {
		_, err = io.WriteString(w, clean)
	}
	b.problem(name, err)
}

func (b *bundle) json(name string, v any) {
	raw, err := json.MarshalIndent(v, "", "  ")
	b.problem(name, err)
	b.text(name, string(raw)+"\n")
}

func (b *bundle) lines(name string, rows []any) {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	for _, r := range rows {
		b.problem(name, enc.Encode(r))
	}
	b.text(name, text.String())
}

func (b *bundle) run(ctx context.Context, st *Store, s replay.RunStatus) {
	at := "runs/" + s.Spec.Run + "/"
	b.text(at+"config.yaml", string(s.Spec.Config))
	var steps []any
	if s.LastStep != nil {
		for n := max(1, int64(s.LastStep.Step)-bundleSteps+1); n <= int64(s.LastStep.Step); n++ {
			rec, err := st.Step(ctx, s.Spec.Run, uint64(n))
			if err != nil {
				b.problem(fmt.Sprintf("step %d of %s", n, s.Spec.Run), err)
				continue
			}
			steps = append(steps, rec)
		}
	}
	b.lines(at+"steps.jsonl", steps)
	if s.FailedRollouts > 0 {
		failed, err := failures(ctx, st, s.Spec.Run)
		b.problem("failed rollouts of "+s.Spec.Run, err)
		b.lines(at+"failed.jsonl", failed)
	}
}

// failures are the newest failed rollouts of a run.
func failures(ctx context.Context, st replay.Store, run string) (out []any, err error) {
	for _, table := range []string{"train", "eval"} {
		for cursor := ""; ; {
			items, next, err := st.Scan(ctx, run, table, cursor, 1000)
			if err != nil {
				return out, err
			}
			for _, it := range items {
				if s := eventlog.Status(it.Status); s == eventlog.Failed || s == eventlog.TimedOut {
					out = append(out, map[string]any{"log": it.LogID, "table": table, "task": it.Source + "/" + it.Task, "worker": it.Worker,
						"status": s.String(), "cause": it.Cause, "at": it.Created, "version": it.MaxVersion})
				}
			}
			if next == "" {
				break
			}
			cursor = next
		}
	}
	return out[max(0, len(out)-bundleFailed):], nil
}

// folder adds the logs, metrics and list of files of a run's or node's folder.
func (b *bundle) folder(ctx context.Context, dir string) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			b.problem(path, err)
			return nil
		}
		rel, _ := filepath.Rel(dir, path)
		if d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil && len(files) < bundleEntries {
			files = append(files, fmt.Sprintf("%12d %s %s", info.Size(), info.ModTime().UTC().Format(time.DateTime), filepath.ToSlash(rel)))
		}
		switch {
		case d.Name() == metricsAddrFile:
			b.scrape(ctx, path, rel)
		case strings.HasSuffix(rel, ".log"):
			end, err := readEnd(path, bundleLog)
			b.problem(rel, err)
			b.text("logs/"+filepath.ToSlash(rel), string(end))
		}
		return nil
	})
	b.problem("folder", err)
	sort.Strings(files)
	if len(files) == bundleEntries {
		files = append(files, "... and more")
	}
	b.text("files.txt", strings.Join(files, "\n")+"\n")
}

func (b *bundle) scrape(ctx context.Context, path, rel string) {
	name := "metrics/" + strings.ReplaceAll(filepath.ToSlash(filepath.Dir(rel)), "/", "-") + ".txt"
	err := func() error {
		addr, err := readFirstLine(path)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, bundleScrape)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			return err
		}
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, bundleLog))
		b.text(name, string(text))
		return err
	}()
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	b.problem(name, err)
}
