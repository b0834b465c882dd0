package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/replay"
)

// serial numbers logs over the whole command, so that no id comes twice.
var serial atomic.Uint64

// load is what producers did.
type load struct {
	logs, bytes int
	seconds     float64
	latencies   []time.Duration // sorted, of the appends that ended after the warm-up
	cpu         float64         // microseconds of all processes of ours per append, warm-up included
}

func (l load) rate() float64 {
	if l.logs == 0 {
		return 0
	}
	return float64(l.logs) / l.seconds
}

func (l load) quantile(q float64) float64 {
	if len(l.latencies) == 0 {
		return 0
	}
	return l.latencies[min(int(q*float64(len(l.latencies))), len(l.latencies)-1)].Seconds() * 1e3
}

// produce runs producers for warm + d; each appends one log at a time and
// waits for its acknowledgement. With a rate (logs/s in all) they keep to it,
// and an append's time counts from when it was due. Group members are single.
func (g *group) produce(ctx context.Context, recs []replay.Record, producers int, warm, d time.Duration, rate float64) (load, error) {
	ctx, cancel := context.WithTimeout(ctx, warm+d+time.Minute)
	defer cancel()
	cpu, first := g.cpu(), serial.Load()
	start := time.Now()
	from, end := start.Add(warm), start.Add(warm+d)
	var mu sync.Mutex
	var total load
	var failed error
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			var own load
			var err error
			every := time.Duration(0)
			due := start
			if rate > 0 {
				every = time.Duration(float64(producers) / rate * float64(time.Second))
				due = start.Add(every * time.Duration(p) / time.Duration(producers))
			}
			for i := p; err == nil; i += producers {
				if every > 0 {
					time.Sleep(time.Until(due))
				} else {
					due = time.Now()
				}
				if !time.Now().Before(end) {
					break
				}
				r := recs[i%len(recs)]
				n := serial.Add(1)
				r.Item.LogID, r.Item.Group, r.Item.Member, r.Item.GroupSize = fmt.Sprintf("log-%016x", n), fmt.Sprintf("g%016x", n), 0, 1
				_, err = g.cl.Append(ctx, []replay.Record{r})
				if now := time.Now(); err == nil && now.After(from) && !now.After(end) {
					own.logs++
					own.bytes += len(r.Bytes)
					own.latencies = append(own.latencies, now.Sub(due))
				}
				due = due.Add(every)
			}
			mu.Lock()
			defer mu.Unlock()
			total.logs += own.logs
			total.bytes += own.bytes
			total.latencies = append(total.latencies, own.latencies...)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	total.seconds = d.Seconds()
	total.cpu = (g.cpu() - cpu) / float64(max(serial.Load()-first, 1)) * 1e6
	slices.Sort(total.latencies)
	if failed == nil && total.logs == 0 {
		failed = errors.New("no append was acknowledged")
	}
	return total, failed
}
