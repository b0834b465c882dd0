package sim

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"time"

	"github.com/skein-rl/skein/replay"
)

// epoch is virtual time 0 on the leader's clock.
var epoch = time.Unix(1_700_000_000, 0)

// Report is what happened.
type Report struct {
	Seed    uint64
	Virtual time.Duration // how long it was
	Events  uint64
	// Commands folded, by kind; Refused those that the fold refused.
	Commands map[string]int
	Refused  int
	Faults   map[string]int
	Messages int
	Lost     int // of Messages
	Steps    []uint64
	Status   []replay.RunStatus // of every run at the end
	// Hash of every command and answer in order: the history. Taken with
	// Config.Replica, which encodes them.
	Hash uint64
}

// world is one simulation.
type world struct {
	cfg    Config
	rng    rng
	now    time.Duration
	queue  queue
	store  *store
	runs   []*run
	work   []*worker
	learn  []*learner
	rep    Report
	hash   hash.Hash64
	failed error
	names  int
}

// run is one of the runs and its auditor.
type run struct {
	spec     replay.RunSpec
	audit    *audit
	takes    []*attempt // waiting at the leader, first come first
	leases   []*attempt
	moved    time.Duration // when it last committed, or all it needs came back
	policy   uint64        // newest published
	finished bool
}

// Run simulates until every run has its steps. A violated promise, and what a
// broken fold returned, are errors that name the seed; the report is of what
// happened until then.
func Run(cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	if cfg.Apply == nil {
		cfg.Apply = replay.Apply
	}
	w := &world{cfg: cfg, rng: rng(cfg.Seed ^ 0x5ce1), hash: fnv.New64a()}
	w.rep = Report{Seed: cfg.Seed, Commands: map[string]int{}, Faults: map[string]int{}}
	w.begin()
	for w.failed == nil && !w.finished() {
		e, ok := w.queue.pop()
		if !ok {
			w.fail("nothing is left to happen")
			break
		}
		if e.at > cfg.Limit {
			w.fail("the limit of %v is over, with %v steps of %d", cfg.Limit, w.steps(), cfg.Steps)
			break
		}
		w.now = e.at
		w.rep.Events++
		e.do()
	}
	if w.failed == nil {
		w.end()
	}
	w.rep.Virtual, w.rep.Hash, w.rep.Steps = w.now, w.hash.Sum64(), w.steps()
	if w.failed != nil {
		return w.rep, fmt.Errorf("sim: seed %d at %v, event %d: %w", cfg.Seed, w.now, w.rep.Events, w.failed)
	}
	return w.rep, nil
}

func (w *world) begin() {
	w.store = newStore(w)
	for i := range w.cfg.Runs {
		spec := w.cfg.Spec
		spec.Run = fmt.Sprintf("r%d", i)
		r := &run{spec: spec, audit: newAudit(spec)}
		w.runs = append(w.runs, r)
		w.store.apply(replay.CreateRunCmd{Now: w.store.clock(), Spec: spec})
		for range w.cfg.Learners {
			l := &learner{process: process{w: w, run: r, name: fmt.Sprintf("learner-%d", len(w.learn)), up: true}}
			w.learn = append(w.learn, l)
			l.after(w.rng.exp(time.Second), l.resume)
		}
	}
	for i := range w.cfg.Workers {
		k := &worker{process: process{w: w, run: w.runs[i%len(w.runs)], name: w.name(), up: true}, node: i % w.cfg.Nodes}
		k.speed = 1 / float64(w.rng.draw(Spread{1000, w.cfg.Speeds})) * 1000
		w.work = append(w.work, k)
		k.after(w.rng.exp(time.Second), k.join)
	}
	w.faults()
	w.watch()
}

// name is one that no worker had.
func (w *world) name() string {
	w.names++
	return fmt.Sprintf("worker-%d", w.names)
}

// after does f so much later.
func (w *world) after(d time.Duration, f func()) { w.queue.push(w.now+max(d, 0), f) }

func (w *world) finished() bool {
	for _, r := range w.runs {
		if !r.finished {
			return false
		}
	}
	return true
}

func (w *world) steps() []uint64 {
	var out []uint64
	for _, r := range w.runs {
		out = append(out, r.audit.version)
	}
	return out
}

func (w *world) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
		w.trace("FAILED: %v", w.failed)
	}
}

func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%12.6f %s\n", w.now.Seconds(), fmt.Sprintf(format, args...))
	}
}

// watch looks whether every run that could go on does.
func (w *world) watch() {
	for _, r := range w.runs {
		workers, learners := 0, 0
		for _, k := range w.work {
			if k.run == r && k.here() {
				workers++
			}
		}
		for _, l := range w.learn {
			if l.run == r && l.here() {
				learners++
			}
		}
		if r.finished || workers == 0 || learners == 0 || !w.store.up {
			r.moved = w.now
		}
		if w.now-r.moved > w.cfg.Stall {
			st, err := replay.Status(w.store.kv, r.spec.Run)
			w.fail("run %s stands still since %v with %d workers and %d learners: ready %d, running %d, leased %d, dropped %v, %v", r.spec.Run, r.moved,
				workers, learners, st.ReadyGroups, st.RunningGroups, st.LeasedGroups, st.DropReasons, err)
		}
	}
	w.after(time.Second, w.watch)
}

// end checks what must hold at the end.
func (w *world) end() {
	for _, r := range w.runs {
		st, err := replay.Status(w.store.kv, r.spec.Run)
		if err != nil {
			w.fail("status of run %s: %w", r.spec.Run, err)
			return
		}
		w.rep.Status = append(w.rep.Status, st)
		if err := r.audit.end(w.store.kv, st); err != nil {
			w.fail("%w", err)
			return
		}
	}
	if w.cfg.Replica {
		if err := sameState(w.store.kv, w.store.replica); err != nil {
			w.fail("%w", err)
		}
	}
}

// sameState compares two states pair by pair.
func sameState(a, b replay.Reader) error {
	pairs := map[string]string{}
	var bad error
	err := a.Iterate(nil, nil, func(k, v []byte) bool {
		pairs[string(k)] = string(v)
		return true
	})
	err = errors.Join(err, b.Iterate(nil, nil, func(k, v []byte) bool {
		if have, ok := pairs[string(k)]; !ok || have != string(v) {
			bad = fmt.Errorf("two replicas folded the same commands and differ at key %q", k)
			return false
		}
		delete(pairs, string(k))
		return true
	}))
	if err == nil && bad == nil && len(pairs) > 0 {
		bad = fmt.Errorf("two replicas folded the same commands and one lacks %d keys", len(pairs))
	}
	return errors.Join(err, bad)
}
