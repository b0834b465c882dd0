package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// inspectTraining reads the store that a stopped run left: every step is there
// once and follows the one before, no group and no log was trained twice or is
// missing, none was staler than the run allows. It returns the times of the
// commits.
func inspectTraining(ctx context.Context, dir string, target int, sum *TrainingReport, f *findings) ([]time.Time, error) {
	st, err := project.OpenStore(ctx, project.StoreOptions{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	runs, err := st.Runs(ctx)
	if err != nil || len(runs) == 0 {
		return nil, fmt.Errorf("no run is stored: %w", err)
	}
	var times []time.Time
	for _, run := range runs {
		s, err := st.Status(ctx, run)
		if err != nil {
			return nil, err
		}
		for age, n := range s.StalenessCounts {
			sum.Stale[age] += n
		}
		sum.Refused += s.Duplicates
		last := uint64(0)
		if s.LastStep != nil {
			last = s.LastStep.Step
		}
		if !s.Finished || last != uint64(target) {
			f.add("run %s: finished %v at step %d, the target is %d", run, s.Finished, last, target)
		}
		t, err := stepsTrained(ctx, st, s, last, f)
		if err != nil {
			return nil, err
		}
		times = append(times, t...)
		logs, err := logsStored(ctx, st, s, f)
		if err != nil {
			return nil, err
		}
		sum.Steps += int(last)
		sum.AckedLogs += logs
		sum.Operations += int(last) + logs + s.Duplicates
		sum.Acked += int(last) + logs
	}
	return times, nil
}

func stepsTrained(ctx context.Context, st replay.Store, s replay.RunStatus, last uint64, f *findings) (times []time.Time, err error) {
	run := s.Spec.Run
	groups, logs := map[string]uint64{}, map[string]uint64{}
	version, checkpoint := uint64(0), ""
	for n := uint64(1); n <= last; n++ {
		rec, err := st.Step(ctx, run, n)
		if err != nil {
			f.Lost++
			f.add("run %s: step %d: %v", run, n, err)
			continue
		}
		times = append(times, rec.Committed)
		if rec.Version != version+1 || n > 1 && rec.PrevCheckpoint != checkpoint {
			f.add("run %s: step %d has version %d after %d and follows checkpoint %q, not %q", run, n, rec.Version, version, rec.PrevCheckpoint, checkpoint)
		}
		for kind, ids := range map[string][]string{"group": rec.Groups, "log": rec.LogIDs} {
			seen := groups
			if kind == "log" {
				seen = logs
			}
			for _, id := range ids {
				if seen[id] != 0 {
					f.Duplicated++
					f.add("run %s: %s %s was trained in steps %d and %d", run, kind, id, seen[id], n)
				}
				seen[id] = n
			}
		}
		recs, err := st.Fetch(ctx, rec.LogIDs)
		if err != nil {
			f.Lost++
			f.add("run %s: logs of step %d: %v", run, n, err)
		}
		for _, r := range recs {
			if r.Item.Tokens > 0 && version > r.Item.MinVersion+s.Spec.MaxStaleness {
				f.add("run %s: step %d trained log %s of version %d at version %d, at most %d are allowed between", run, n, r.Item.LogID, r.Item.MinVersion, version, s.Spec.MaxStaleness)
			}
		}
		if _, err := st.GetBlob(ctx, rec.Adapter); err != nil {
			f.Lost++
			f.add("run %s: adapter of step %d: %v", run, n, err)
		}
		version, checkpoint = rec.Version, rec.Checkpoint
	}
	if checkpoint != "" {
		if _, err := st.GetBlob(ctx, checkpoint); err != nil {
			f.Lost++
			f.add("run %s: last checkpoint: %v", run, err)
		}
	}
	return times, nil
}

// logsStored counts the accepted logs of a run; none may be there twice.
func logsStored(ctx context.Context, st replay.Store, s replay.RunStatus, f *findings) (n int, err error) {
	type member struct {
		group string
		index uint32
	}
	ids, members := map[string]bool{}, map[member]bool{}
	for _, table := range []string{"train", "eval"} {
		for cursor := ""; ; {
			page, next, err := st.Scan(ctx, s.Spec.Run, table, cursor, 500)
			if err != nil {
				return n, err
			}
			for _, it := range page {
				m := member{it.Group, it.Member}
				if ids[it.LogID] || members[m] {
					f.Duplicated++
					f.add("run %s: log %s, member %d of group %s, was accepted twice", s.Spec.Run, it.LogID, it.Member, it.Group)
				}
				ids[it.LogID], members[m] = true, true
			}
			n += len(page)
			if cursor = next; next == "" {
				break
			}
		}
	}
	if n != s.Appended {
		f.add("run %s: %d logs were acknowledged, %d are listed", s.Spec.Run, s.Appended, n)
	}
	return n, nil
}

// idle notes what the kills cost.
func (r *TrainingReport) idle(kills []kill, commits []time.Time, median float64) {
	for _, k := range kills {
		i := slices.IndexFunc(commits, func(t time.Time) bool { return t.After(k.at) })
		if i < 1 {
			continue // before the first step, or after the last
		}
		d := r.Idle[k.kind]
		if d == nil {
			d = &Idle{}
			r.Idle[k.kind] = d
		}
		next := commits[i].Sub(k.at).Seconds()
		extra := max(0, commits[i].Sub(commits[i-1]).Seconds()-median)
		d.Faults++
		d.Mean += (next - d.Mean) / float64(d.Faults)
		d.Extra += (extra - d.Extra) / float64(d.Faults)
		d.Max, d.ExtraMx = max(d.Max, next), max(d.ExtraMx, extra)
	}
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
