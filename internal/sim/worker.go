package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// worker imitates rollout.Worker: it takes tickets while it has room, samples
// with the newest policy it has (which may change in the middle of a rollout),
// appends each member as it ends, abandons what is wanted no more, and gives
// back what it cannot finish in time.
type worker struct {
	process
	node    int
	speed   float64
	slow    time.Duration // until then it is twenty times slower
	version uint64
	groups  []*work
	asking  bool
	asks    int
	leaving bool
	out     []*parcel
	sending bool
	logs    int
}

// work is a group on its way.
type work struct {
	t              replay.Ticket
	deadline, keep time.Duration
	left           int
	unfinished     bool
	closed         bool
	ended          bool
}

// parcel is a log to be appended.
type parcel struct {
	g    *work
	item replay.Item
}

// appendMargin is kept free before a ticket ends.
const appendMargin = 2 * time.Second

// join gives back what an earlier life held, and begins.
func (k *worker) join() {
	k.groups, k.out, k.asking, k.sending, k.leaving = nil, nil, false, false, false
	k.version = 0
	c := &call{
		cmd: func(now time.Time) replay.Command {
			return replay.ReturnTicketCmd{Now: now, Run: k.run.spec.Run, Worker: k.name}
		},
		done: func(_ replay.Result, err error) {
			if err != nil {
				k.after(time.Second, k.join)
				return
			}
			k.adopt(k.run.policy)
			k.take()
		},
	}
	k.ask(c, k.w.cfg.CallTimeout)
}

// follow has the worker load a policy that was published, unless the message is
// lost; then it asks for itself when its wait is over.
func (k *worker) follow(version uint64) {
	d := k.w.rng.draw(k.w.cfg.Net.Delay) + k.w.rng.draw(k.w.cfg.Fetch)
	if k.cut > k.w.now || k.w.rng.chance(k.w.cfg.Net.Loss) {
		d += max(k.cut-k.w.now, 0) + 10*time.Second
	}
	k.after(d, func() { k.adopt(version) })
}

func (k *worker) adopt(version uint64) { k.version = max(k.version, version) }

// take asks for as many groups as there is room for.
func (k *worker) take() {
	n := k.w.cfg.Groups - len(k.groups)
	if n < 1 || k.asking || k.leaving {
		return
	}
	k.asking = true
	k.asks++
	id, asked, name := fmt.Sprintf("q%d", k.asks), k.w.now, k.run.spec.Run
	c := &call{
		wait:  asked + k.w.cfg.TakeWait,
		ready: func(kv replay.Reader, now time.Time) (bool, error) { return replay.HasTickets(kv, name, k.name, now) },
		parks: func(r *run) *[]*attempt { return &r.takes },
		cmd: func(now time.Time) replay.Command {
			return replay.TakeTicketsCmd{Now: now, Run: name, Worker: k.name, N: n, RequestID: id}
		},
		empty: func(r replay.Result) bool { return len(r.Tickets) == 0 },
		done: func(res replay.Result, err error) {
			k.asking = false
			for _, t := range res.Tickets {
				k.start(t, asked+k.run.spec.TicketTTL)
			}
			switch {
			case err != nil:
				k.after(time.Second, k.take)
			case !k.run.finished:
				k.take()
			}
		},
	}
	k.ask(c, k.w.cfg.CallTimeout)
}

// start rolls out a ticket's group, once the policy that it wants is there.
func (k *worker) start(t replay.Ticket, expires time.Duration) {
	g := &work{t: t, deadline: expires - min(appendMargin, (expires-k.w.now)/4), keep: expires + k.run.spec.TicketTTL}
	k.groups = append(k.groups, g)
	k.await(g)
}

func (k *worker) await(g *work) {
	switch {
	case k.w.now >= g.deadline:
		g.unfinished = true
		k.end(g)
		return
	case g.t.Table == replay.TableTrain && k.version < g.t.Version:
		k.after(200*time.Millisecond, func() { k.await(g) })
		return
	}
	for m := range g.t.GroupSize {
		if !slices.Contains(g.t.Done, m) {
			g.left++
			k.roll(g, m)
		}
	}
	if g.left == 0 {
		k.end(g)
	}
}

// roll samples one member.
func (k *worker) roll(g *work, member uint32) {
	w, first := k.w, k.version
	d := time.Duration(float64(w.rng.draw(w.cfg.Rollout)) / k.speed)
	if k.slow > w.now {
		d *= 20
	}
	fails := w.rng.chance(w.cfg.Fail)
	late := w.now+d > g.deadline
	if late {
		d = g.deadline - w.now
	}
	k.after(d, func() {
		if g.closed || late {
			g.unfinished = g.unfinished || late && !g.closed
			k.settle(g)
			return
		}
		k.logs++
		it := replay.Item{
			LogID: fmt.Sprintf("%s.%d.%d", k.name, k.life, k.logs), Run: k.run.spec.Run, Table: g.t.Table, Group: g.t.Group, Member: member,
			GroupSize: g.t.GroupSize, Task: fmt.Sprint(g.t.TaskIndex()), Attempt: g.t.Attempt, Worker: k.name, Digest: "d", Size: 1,
			Status: uint8(eventlog.OK), Tokens: 1 + uint32(d/(20*time.Millisecond)), MinVersion: first, MaxVersion: k.version,
			HasReward: true, Reward: float64(w.rng.intn(3)) / 2,
		}
		if g.t.Table == replay.TableEval { // the adapter of exactly that version, beside the policy
			it.MinVersion, it.MaxVersion = g.t.Version, g.t.Version
		}
		if fails {
			it.Status, it.Cause, it.HasReward, it.Reward = uint8(eventlog.Failed), "tool: broken", false, 0
		}
		k.out = append(k.out, &parcel{g, it})
		k.send()
	})
}

// send appends what has gathered, one call at a time, until the store has it.
func (k *worker) send() {
	if k.sending || len(k.out) == 0 {
		return
	}
	k.sending = true
	batch := k.out[:min(len(k.out), 64)]
	k.out = slices.Clone(k.out[len(batch):])
	items := make([]replay.Item, len(batch))
	for i, p := range batch {
		items[i] = p.item
	}
	c := &call{
		cmd: func(now time.Time) replay.Command { return replay.AppendItemsCmd{Now: now, Items: items} },
		done: func(res replay.Result, err error) {
			k.sending = false
			for i, p := range batch {
				switch {
				case err == nil:
					if r := res.Append[i]; r.Rejected != "" {
						k.w.fail("%s: an honest log was rejected: %s", k.name, r.Rejected)
					} else {
						k.run.audit.acknowledged(p.item.LogID, r)
						p.g.closed = p.g.closed || r.Closed
					}
					k.settle(p.g)
				case k.w.now > p.g.keep: // surely of no use any more
					p.g.unfinished = true
					k.settle(p.g)
				default:
					k.out = append(k.out, p)
				}
			}
			k.send()
		},
	}
	k.ask(c, k.w.cfg.CallTimeout)
}

func (k *worker) settle(g *work) {
	g.left--
	if g.left <= 0 || g.closed {
		k.end(g)
	}
}

// end frees a group's place and gives back what could not be finished.
func (k *worker) end(g *work) {
	if g.ended {
		return
	}
	g.ended = true
	k.groups = slices.DeleteFunc(k.groups, func(o *work) bool { return o == g })
	if !g.unfinished || g.closed {
		k.take()
		return
	}
	k.giveBack(g)
	k.after(time.Second, k.take) // it may be the next to be handed out
}

func (k *worker) giveBack(g *work) {
	c := &call{
		cmd: func(now time.Time) replay.Command {
			return replay.ReturnTicketCmd{Now: now, Run: k.run.spec.Run, Group: g.t.Group, Worker: k.name}
		},
		done: func(_ replay.Result, err error) {
			if err != nil && !errors.Is(err, replay.ErrStale) && !errors.Is(err, replay.ErrUnavailable) {
				k.w.fail("%s gives back %s: %w", k.name, g.t.Group, err)
			}
		},
	}
	k.ask(c, k.w.cfg.CallTimeout)
}

// drain gives everything back and leaves; another one comes in its place.
func (k *worker) drain() {
	k.leaving = true
	for _, g := range k.groups {
		g.ended, g.closed = true, true
		k.giveBack(g)
	}
	k.groups = nil
	k.after(2*time.Second, func() {
		k.die()
		k.replace()
	})
}

// replace has a worker of another name come after a while.
func (k *worker) replace() {
	k.w.after(k.w.rng.draw(k.w.cfg.Faults.Down), func() {
		k.name, k.up = k.w.name(), true
		k.join()
	})
}
