package project

import (
	"context"
	"errors"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// Overview is everything that skein top and skein debug bundle show of a store:
// its runs, their tables, and the processes.
type Overview struct {
	At      time.Time
	Cluster *cluster.ClusterStatus // nil when no node is running
	Runs    []RunOverview          // by name
}

// RunOverview is one run.
type RunOverview struct {
	Status replay.RunStatus
	Tables []replay.TableStatus
	// Open is how many groups may be on their way from the workers.
	Open int
}

// Look reads an overview. What cannot be had is in the error; the rest is there.
func Look(ctx context.Context, st *Store) (Overview, error) {
	o := Overview{At: time.Now()}
	var errs []error
	if st.Cluster != nil {
		cs, err := st.Cluster(ctx)
		if err == nil {
			o.Cluster = &cs
		}
		errs = append(errs, err)
	}
	runs, err := st.Runs(ctx)
	errs = append(errs, err)
	for _, run := range runs {
		s, err := st.Status(ctx, run)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		tables, err := st.Tables(ctx, run)
		errs = append(errs, err)
		o.Runs = append(o.Runs, RunOverview{Status: s, Tables: tables, Open: openGroups(s)})
	}
	return o, errors.Join(errs...)
}
