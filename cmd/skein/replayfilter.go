package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/replay/transfer"
)

// filterFlags are the flags that say which logs of a run are meant.
type filterFlags struct {
	f                    transfer.Filter
	minReward, maxReward float64
	maxVersion           uint64
	since, until         time.Duration // before now
}

func (q *filterFlags) flags(cmd *cobra.Command, table string) {
	f := cmd.Flags()
	f.StringVar(&q.f.Table, "table", table, "table the logs were appended to (\"\" = every one)")
	f.StringSliceVar(&q.f.IDs, "id", nil, "ids of logs")
	f.StringVar(&q.f.Task, "task", "", "task id")
	f.StringVar(&q.f.Group, "group", "", "group id")
	f.StringVar(&q.f.Worker, "worker", "", "worker that wrote it")
	f.StringVar(&q.f.Author, "author", "", "author of an event in it, such as human:ann or 'human:*' (reads every log)")
	f.StringVar(&q.f.Status, "status", "", "ok, truncated, failed or timeout")
	f.Float64Var(&q.minReward, "min-reward", math.Inf(-1), "lowest reward")
	f.Float64Var(&q.maxReward, "max-reward", math.Inf(1), "highest reward")
	f.Uint64Var(&q.f.MinVersion, "min-version", 0, "oldest policy version of any token")
	f.Uint64Var(&q.maxVersion, "max-version", math.MaxUint64, "newest policy version of any token")
	f.DurationVar(&q.since, "since", 0, "made at most so long ago")
	f.DurationVar(&q.until, "until", 0, "made at least so long ago")
}

// filter is what the flags say, as of a moment.
func (q *filterFlags) filter(now time.Time) (transfer.Filter, error) {
	f := q.f
	if !math.IsInf(q.minReward, -1) {
		f.MinReward = &q.minReward
	}
	if !math.IsInf(q.maxReward, 1) {
		f.MaxReward = &q.maxReward
	}
	if q.maxVersion != math.MaxUint64 {
		f.MaxVersion = &q.maxVersion
	}
	var errs []error
	if q.since < 0 || q.until < 0 {
		errs = append(errs, fmt.Errorf("--since %v, --until %v: want a duration before now, such as 1h", q.since, q.until))
	}
	if q.since > 0 {
		f.Since = now.Add(-q.since)
	}
	if q.until > 0 {
		f.Until = now.Add(-q.until)
	}
	return f, errors.Join(append(errs, f.Validate())...)
}
