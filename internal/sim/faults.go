package sim

import (
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// faults schedules every kind of fault.
func (w *world) faults() {
	f := w.cfg.Faults
	w.every(f.Worker, func() {
		if k := w.someone(); k != nil {
			w.fault("worker", "%s dies", k.name)
			k.crash()
		}
	})
	w.every(f.Node, func() {
		node := w.rng.intn(w.cfg.Nodes)
		w.fault("node", "machine %d dies", node)
		for _, k := range w.work {
			if k.node == node && k.up {
				k.crash()
			}
		}
	})
	w.every(f.Drain, func() {
		if k := w.someone(); k != nil && !k.leaving {
			w.fault("drain", "%s drains", k.name)
			k.drain()
		}
	})
	w.every(f.Slow, func() {
		if k := w.someone(); k != nil {
			w.fault("slow", "%s is slow", k.name)
			k.slow = w.now + w.rng.draw(f.Down)
		}
	})
	w.every(f.Partition, func() {
		p := &w.learn[w.rng.intn(len(w.learn))].process
		if k := w.someone(); k != nil && w.rng.chance(.7) {
			p = &k.process
		}
		w.fault("partition", "%s is cut off", p.name)
		p.cut = w.now + w.rng.draw(f.Down)
	})
	w.every(f.Learner, func() {
		if l := w.learn[w.rng.intn(len(w.learn))]; l.up {
			w.fault("learner", "%s dies", l.name)
			l.crash()
		}
	})
	w.every(f.Leader, func() {
		w.fault("leader", "the leader changes")
		w.store.change()
	})
	w.every(f.Garbage, w.garbage)
}

// every does f at random times.
func (w *world) every(mean time.Duration, f func()) {
	if mean <= 0 {
		return
	}
	w.after(w.rng.exp(mean), func() {
		f()
		w.every(mean, f)
	})
}

func (w *world) fault(kind, format string, args ...any) {
	w.rep.Faults[kind]++
	w.trace("FAULT "+format, args...)
}

// someone is a worker that lives, or nil.
func (w *world) someone() *worker {
	for range 8 {
		if k := w.work[w.rng.intn(len(w.work))]; k.up {
			return k
		}
	}
	return nil
}

// crash ends a worker. Half of them come back under their name and half are
// spot instances: another one comes.
func (k *worker) crash() {
	k.die()
	if k.w.rng.chance(.5) {
		k.replace()
		return
	}
	k.w.after(k.w.rng.draw(k.w.cfg.Faults.Down), func() {
		k.up = true
		k.join()
	})
}

// garbage sends a log that can never be accepted: of a group nobody was given,
// of another size, of a policy that does not exist.
func (w *world) garbage() {
	k := w.someone()
	if k == nil {
		return
	}
	w.fault("garbage", "%s sends garbage", k.name)
	w.names++
	spec := k.run.spec
	it := replay.Item{LogID: "garbage-" + w.name(), Run: spec.Run, Table: replay.TableTrain, Group: spec.Run + "/train/0",
		GroupSize: spec.GroupSize + spec.Stragglers.Oversample, Worker: k.name, Digest: "d", Size: 1, Status: uint8(eventlog.OK), Tokens: 1,
		MaxVersion: k.run.policy}
	switch w.rng.intn(3) {
	case 0:
		it.Group = spec.Run + "/train/99999999"
	case 1:
		it.GroupSize++
	case 2:
		it.MaxVersion += 1000
	}
	c := &call{
		cmd: func(now time.Time) replay.Command { return replay.AppendItemsCmd{Now: now, Items: []replay.Item{it}} },
		done: func(res replay.Result, err error) {
			if err == nil && res.Append[0].Rejected == "" {
				w.fail("garbage was accepted: %+v", it)
			}
		},
	}
	k.ask(c, w.cfg.CallTimeout)
}
