// Package load puts a store under a short, steady load and says how it did: for
// an operator who wants to know what a cluster or a disk gives. It is no
// benchmark against others; bench/ has those.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// Options of a load. DefaultOptions suits a laptop.
type Options struct {
	Run       string        // a new one; it stays, finished, without its logs unless Keep
	For       time.Duration // of each phase
	Producers int           // that append at once
	Batch     int           // logs of one append
	Bytes     int           // of one log, about
	Groups    int           // of one lease
	GroupSize int
	Keep      bool // leave table and logs
}

// DefaultOptions: 5 s a phase, 8 producers, 8 logs of 8 KiB, leases of 16 groups
// of 4.
func DefaultOptions() Options {
	return Options{Run: fmt.Sprintf("bench-%d", time.Now().Unix()), For: 5 * time.Second, Producers: 8, Batch: 8, Bytes: 8 << 10, Groups: 16, GroupSize: 4}
}

// Validate reports every problem at once.
func (o Options) Validate() error {
	var errs []error
	if o.Run == "" {
		errs = append(errs, errors.New("run is empty"))
	}
	if o.For < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("for = %v: want at least 100ms", o.For))
	}
	for _, x := range []struct {
		field     string
		v, lo, hi int
	}{{"producers", o.Producers, 1, 4096}, {"batch", o.Batch, 1, 512}, {"bytes", o.Bytes, 256, 4 << 20}, {"groups", o.Groups, 1, 1024}, {"group-size", o.GroupSize, 1, 64}} {
		if x.v < x.lo || x.v > x.hi {
			errs = append(errs, fmt.Errorf("%s = %d: want %d to %d", x.field, x.v, x.lo, x.hi))
		}
	}
	return errors.Join(errs...)
}

// Rate is one phase.
type Rate struct {
	Seconds   float64 `json:"seconds"`
	Calls     int     `json:"calls"`
	Logs      int     `json:"logs"`
	PerSecond float64 `json:"logs_per_second"`
	MBPerS    float64 `json:"mb_per_second"` // of 10^6 bytes
	P50Ms     float64 `json:"p50_ms"`        // of a call
	P99Ms     float64 `json:"p99_ms"`
	Busy      int     `json:"busy"` // logs held back
}

// Report is what a load found.
type Report struct {
	Run    string `json:"run"`
	Append Rate   `json:"append"`
	// Sample is lease, fetch and commit, one learner after itself.
	Sample Rate `json:"sample"`
	Commit Rate `json:"commit"` // the commits of Sample alone
}

// Store is what a load needs.
type Store interface {
	replay.Store
	DropTable(ctx context.Context, run, table string) error
}

const tableName = "bench"

// Run appends for a while, then samples what it appended for a while, and cleans
// up behind itself.
func Run(ctx context.Context, st Store, o Options) (rep Report, err error) {
	if err := o.Validate(); err != nil {
		return rep, fmt.Errorf("%w: load: %w", replay.ErrInvalid, err)
	}
	rep.Run = o.Run
	spec := replay.RunSpec{Run: o.Run, GroupSize: uint32(o.GroupSize), GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1}
	if err := st.CreateRun(ctx, spec); err != nil {
		return rep, err
	}
	if _, err := st.SetTable(ctx, o.Run, tableName, table.Default(), 0); err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, cleanUp(context.WithoutCancel(ctx), st, o)) }()
	if rep.Append, err = appendAll(ctx, st, o); err != nil {
		return rep, err
	}
	rep.Sample, rep.Commit, err = sampleAll(ctx, st, o)
	return rep, err
}

// meter collects the calls of a phase.
type meter struct {
	mu    sync.Mutex
	took  []time.Duration
	logs  int
	bytes int64
	busy  int
}

func (m *meter) add(took time.Duration, logs int, bytes int64, busy int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took = append(m.took, took)
	m.logs, m.bytes, m.busy = m.logs+logs, m.bytes+bytes, m.busy+busy
}

func (m *meter) rate(took time.Duration) Rate {
	slices.Sort(m.took)
	at := func(q float64) float64 {
		if len(m.took) == 0 {
			return 0
		}
		return m.took[int(q*float64(len(m.took)-1))].Seconds() * 1000
	}
	s := took.Seconds()
	return Rate{Seconds: s, Calls: len(m.took), Logs: m.logs, PerSecond: float64(m.logs) / s, MBPerS: float64(m.bytes) / s / 1e6,
		P50Ms: at(0.5), P99Ms: at(0.99), Busy: m.busy}
}

func appendAll(ctx context.Context, st Store, o Options) (Rate, error) {
	var m meter
	var wg sync.WaitGroup
	errs := make([]error, o.Producers)
	start := time.Now()
	for p := range o.Producers {
		wg.Go(func() {
			text := words(rand.New(rand.NewPCG(uint64(p), 1)), o.Bytes)
			for n := 0; time.Since(start) < o.For && ctx.Err() == nil; {
				recs := make([]replay.Record, 0, o.Batch)
				size := int64(0)
				for range o.Batch {
					r, err := record(o, p, n, text)
					if err != nil {
						errs[p] = err
						return
					}
					recs, size, n = append(recs, r), size+int64(len(r.Bytes)), n+1
				}
				from := time.Now()
				res, err := st.Append(ctx, recs)
				busy := 0
				for _, r := range res {
					if r.Busy != "" {
						busy++
					}
				}
				if err != nil && !errors.Is(err, replay.ErrBusy) {
					errs[p] = err
					return
				}
				m.add(time.Since(from), len(recs)-busy, size, busy)
			}
		})
	}
	wg.Wait()
	return m.rate(time.Since(start)), errors.Join(append(errs, ctx.Err())...)
}

// words is text that compresses as messages do.
func words(r *rand.Rand, n int) string {
	b := make([]byte, 0, n+16)
	for len(b) < n {
		b = fmt.Appendf(b, "%s %x ", []string{"look", "up", "the", "item", "and", "return", "its", "price"}[r.IntN(8)], r.IntN(1<<12))
	}
	return string(b[:n])
}

// record makes the n-th log of a producer, a small one with much text.
func record(o Options, p, n int, text string) (replay.Record, error) {
	created := time.Unix(1_700_000_000, int64(n)).UTC()
	meta := eventlog.Meta{Run: o.Run, Group: fmt.Sprintf("%s/%d/%d", o.Run, p, n/o.GroupSize), Member: uint32(n % o.GroupSize), GroupSize: uint32(o.GroupSize),
		Table: tableName, Source: "bench", Task: fmt.Sprint(n / o.GroupSize), Attempt: 1, Worker: fmt.Sprint("producer-", p), Created: created}
	b := eventlog.NewBuilder(meta)
	b.SetID(fmt.Sprintf("%s/%d/%d", o.Run, p, n))
	for _, e := range []eventlog.Event{eventlog.NewObservation("env", text), eventlog.NewText("done"), eventlog.NewReward(eventlog.EpisodeScope, float64(n%2))} {
		if _, err := b.Append(e); err != nil {
			return replay.Record{}, err
		}
	}
	l, err := b.Finish(eventlog.OK, "")
	if err != nil {
		return replay.Record{}, err
	}
	data, err := eventlog.Encode(l)
	return replay.Record{Bytes: data, Item: replay.Item{
		LogID: l.ID, Run: o.Run, Table: tableName, Group: meta.Group, Member: meta.Member, GroupSize: meta.GroupSize, Source: meta.Source, Task: meta.Task,
		Attempt: 1, Worker: meta.Worker, Status: uint8(eventlog.OK), Reward: float64(n % 2), HasReward: true, Digest: l.Digest(), Size: uint32(len(data)), Created: created,
	}}, err
}

func sampleAll(ctx context.Context, st Store, o Options) (all, commits Rate, err error) {
	digest, err := st.PutBlob(ctx, []byte("load "+o.Run))
	if err != nil {
		return all, commits, err
	}
	var whole, commit meter
	start := time.Now()
	prev := ""
	for step := uint64(1); time.Since(start) < o.For; step++ {
		from := time.Now()
		l, err := st.Lease(ctx, replay.LeaseRequest{Run: o.Run, Table: tableName, Holder: "bench", Groups: o.Groups, AtLeast: 1, LearnerVersion: step - 1, TTL: time.Minute})
		if errors.Is(err, replay.ErrTimeout) {
			break // nothing is left
		}
		if err != nil {
			return all, commits, err
		}
		rec := replay.StepRecord{Run: o.Run, Step: step, Version: step, Lease: l.ID, PrevCheckpoint: prev, Checkpoint: digest, Adapter: digest}
		prev = digest
		for _, g := range l.Groups {
			rec.Groups = append(rec.Groups, g.Group)
			for _, it := range g.Items {
				rec.LogIDs = append(rec.LogIDs, it.LogID)
			}
		}
		logs, err := st.Fetch(ctx, rec.LogIDs)
		if err != nil {
			return all, commits, err
		}
		size := int64(0)
		for _, r := range logs {
			size += int64(len(r.Bytes))
		}
		at := time.Now()
		if err := st.Commit(ctx, rec); err != nil {
			return all, commits, err
		}
		commit.add(time.Since(at), len(logs), size, 0)
		whole.add(time.Since(from), len(logs), size, 0)
	}
	took := time.Since(start)
	return whole.rate(took), commit.rate(took), nil
}

// cleanUp deletes what the load has stored; the bytes go with the next
// compaction.
func cleanUp(ctx context.Context, st Store, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := st.FinishRun(ctx, o.Run); err != nil || o.Keep {
		return err
	}
	for {
		items, _, err := st.Scan(ctx, o.Run, tableName, "", 512)
		if err != nil || len(items) == 0 {
			return errors.Join(err, st.DropTable(ctx, o.Run, tableName))
		}
		ids := make([]string, len(items))
		for i, it := range items {
			ids[i] = it.LogID
		}
		if _, err := st.DeleteLogs(ctx, o.Run, ids, "bench"); err != nil {
			return err
		}
	}
}
