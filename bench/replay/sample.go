package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

const (
	members     = 8  // logs of a group
	groupsLease = 64 // groups of a lease
	sampleFill  = 128 << 20
)

// samplePart measures how fast a learner gets complete groups out of a table, the
// logs' bytes included: lease, fetch and commit, so that each sample counts
// exactly once, on three nodes. The peer's client.sample gets items from memory.
func samplePart(ctx context.Context, s *session) error {
	rv, err := s.reverb()
	if err != nil {
		return err
	}
	for _, size := range []int{small, large} {
		for _, kind := range []table.Kind{table.Uniform, table.Prioritized, table.FIFO} {
			if size == large && kind != table.Uniform {
				continue
			}
			if _, err := rv.ask(ctx, question{Do: "fill", Size: size, Table: string(kind)}); err != nil {
				return err
			}
			if err := s.sampleDuel(ctx, rv, size, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) sampleDuel(ctx context.Context, rv *peer, size int, kind table.Kind) (err error) {
	g, err := s.startGroup(ctx, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	st, err := g.sampler(ctx, size, kind)
	if err != nil {
		return err
	}
	var ours float64
	var best answer
	for i := range s.runs {
		rate, err := st.run(ctx, s.seconds)
		if err != nil {
			return err
		}
		a, err := rv.ask(ctx, question{Do: "sample", Size: size, Table: string(kind), Seconds: s.seconds.Seconds()})
		if err != nil {
			return err
		}
		say("run %d sample %s %s: ours %.0f logs/s, reverb %.0f; load %.1f", i+1, sizeName(size), kind, rate, a.Rate, bench.LoadAverage())
		ours = max(ours, rate)
		if a.Rate > best.Rate {
			best = a
		}
	}
	return s.log.Add(bench.Row{
		Bench: "sample", Size: fmt.Sprintf("%s-%s-r3", sizeName(size), kind), Ours: ours, Peer: "reverb", PeerVersion: best.Version, Theirs: best.Rate, Unit: "logs/s", Runs: s.runs,
		Detail: map[string]any{
			"mb_s": round2(ours * float64(size) / 1e6), "peer_mb_s": round2(best.Rate * float64(size) / 1e6), "group_size": members, "groups_per_lease": groupsLease,
			"stored_groups": sampleFill / size / members, "peer": best.What,
		},
	}, bench.Higher)
}

// fill appends n groups of logs of a size.
func (g *group) fill(ctx context.Context, size, n int) error {
	recs, err := records(size, 8*members, members, 2)
	if err != nil {
		return err
	}
	for i := 0; i < n; i += 16 {
		var batch []replay.Record
		for k := i; k < min(i+16, n); k++ {
			name := fmt.Sprintf("g%016x", serial.Add(1))
			for m := range members {
				r := recs[(k*members+m)%len(recs)]
				r.Item.Group, r.Item.LogID, r.Item.Member = name, fmt.Sprintf("%s-%d", name, m), uint32(m)
				batch = append(batch, r)
			}
		}
		if _, err := g.cl.Append(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// sampler is a learner that reads one batch ahead.
type sampler struct {
	g       *group
	blob    string
	version uint64
}

// sampler fills a table of a kind and returns a learner on it.
func (g *group) sampler(ctx context.Context, size int, kind table.Kind) (*sampler, error) {
	cfg := table.Default()
	cfg.Sampler = table.Selector{Kind: kind}
	if kind == table.Prioritized {
		cfg.Sampler.Exponent = 0.8
		cfg.PriorityFrom = table.PriorityReward
	}
	cfg.MaxTimesSampled, cfg.GroupSize = 0, members
	if _, err := g.cl.SetTable(ctx, runName, "bench", cfg, 0); err != nil {
		return nil, err
	}
	if err := g.fill(ctx, size, sampleFill/size/members); err != nil {
		return nil, err
	}
	blob, err := g.cl.PutBlob(ctx, []byte("adapter"))
	if err != nil {
		return nil, err
	}
	return &sampler{g: g, blob: blob}, nil
}

type batch struct {
	lease *replay.Lease
	ids   []string
	recs  []replay.Record
	err   error
}

// run samples for d and returns the logs per second.
func (s *sampler) run(ctx context.Context, d time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	ahead := s.next(ctx, s.version)
	start, logs := time.Now(), 0
	for {
		b := <-ahead
		if b.err != nil {
			return 0, b.err
		}
		last := time.Since(start) > d
		if !last {
			ahead = s.next(ctx, s.version+1) // while this one's commit is on its way
		}
		if err := s.commit(ctx, b); err != nil {
			return 0, err
		}
		logs += len(b.recs)
		if last {
			return float64(logs) / time.Since(start).Seconds(), nil
		}
	}
}

// next leases and fetches a batch for the step from version on.
func (s *sampler) next(ctx context.Context, version uint64) <-chan batch {
	out := make(chan batch, 1)
	go func() { // ends with ctx
		var b batch
		defer func() { out <- b }()
		b.lease, b.err = s.g.cl.Lease(ctx, replay.LeaseRequest{
			Run: runName, Table: "bench", Holder: fmt.Sprint("learner", version%2), Groups: groupsLease, LearnerVersion: version, TTL: time.Minute, Wait: time.Second,
		})
		if b.err != nil {
			return
		}
		for _, g := range b.lease.Groups {
			for _, it := range g.Items {
				b.ids = append(b.ids, it.LogID)
			}
		}
		if b.recs, b.err = s.g.cl.Fetch(ctx, b.ids); b.err == nil && len(b.recs) != groupsLease*members {
			b.err = fmt.Errorf("fetched %d logs of %d groups of %d", len(b.recs), groupsLease, members)
		}
	}()
	return out
}

func (s *sampler) commit(ctx context.Context, b batch) error {
	prev := s.blob
	if s.version == 0 {
		prev = ""
	}
	err := s.g.cl.Commit(ctx, replay.StepRecord{
		Run: runName, Step: s.version + 1, Version: s.version + 1, Lease: b.lease.ID, LogIDs: b.ids, PrevCheckpoint: prev, Checkpoint: s.blob, Adapter: s.blob,
	})
	s.version++
	return err
}
