package project

import (
	"context"
	"errors"
	"time"

	"github.com/skein-rl/skein/replay"
)

// conclude sums a run up and writes summary.json and report.html, however it
// ended: the summary is worth having after an interruption too. runErr is what
// ended it.
func conclude(ctx context.Context, st replay.Store, c Config, dir string, began time.Time, peakMB func() float64, runErr error) (Summary, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	sum, err := Summarize(ctx, st, c.Run)
	if runErr != nil && err != nil {
		return sum, runErr // what ended the run says it; there may be nothing to sum up
	}
	if err != nil {
		return sum, err
	}
	sum.warn(c.Watch.Config)
	sum.Model, sum.Backend, sum.Task = c.Model, c.Backend, c.Task.Name
	sum.Seconds, sum.PeakRSSMB = time.Since(began).Seconds(), peakMB()
	text, err := c.YAML()
	if err != nil {
		return sum, errors.Join(runErr, err)
	}
	return sum, errors.Join(runErr, sum.Save(dir), WriteReport(dir, sum, text))
}
