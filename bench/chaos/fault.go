package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/skein-rl/skein/bench/chaos/disk"
)

// recovery is how long a group may take to be healthy again. Generous: the
// machine may be busy with other things, and all nodes share it.
const recovery = 5 * time.Minute

// injector carries a schedule out.
type injector struct {
	c     *cluster
	nodes int
	lone  sync.RWMutex // a fault that bears no other beside it holds it alone

	mu      sync.Mutex
	done    map[Kind]int
	skipped map[Kind]int
	loss    disk.Loss
	errs    []error // faults that could not be ended: violations
}

// run begins every fault at its time and returns when all have ended.
func (in *injector) run(ctx context.Context, faults []Fault) {
	start := time.Now()
	var wg sync.WaitGroup
	for _, f := range faults {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(start.Add(f.At))):
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			if slices.Contains(alone, f.Kind) {
				in.lone.Lock()
				defer in.lone.Unlock()
			} else {
				in.lone.RLock()
				defer in.lone.RUnlock()
			}
			if f.Target < 0 {
				if f.Target = in.c.leader(); f.Target < 0 || f.Target >= in.nodes {
					f.Target = int(f.Seed % uint64(in.nodes))
				}
			}
			in.c.note("%s", f)
			begun, err := in.inject(f)
			in.mu.Lock()
			defer in.mu.Unlock()
			if begun {
				in.done[f.Kind]++
			} else {
				in.skipped[f.Kind]++
			}
			if err != nil {
				in.errs = append(in.errs, fmt.Errorf("%s: %w", f, err))
			}
		})
	}
	wg.Wait()
}

// inject does one fault from beginning to end.
func (in *injector) inject(f Fault) (begun bool, err error) {
	c, n := in.c, in.c.at(f.Target)
	rng := rand.New(rand.NewPCG(f.Seed, 7))
	switch f.Kind {
	case Kill, KillLeader:
		n.stop(syscall.SIGKILL, time.Minute)
		time.Sleep(f.For)
		n.start()
	case KillAll:
		in.each(func(n *node) { n.stop(syscall.SIGKILL, time.Minute) })
		time.Sleep(f.For)
		in.each((*node).start)
	case Pause, PauseLead:
		n.signal(syscall.SIGSTOP)
		time.Sleep(f.For)
		n.signal(syscall.SIGCONT)
	case Partition, OneWay, Links, Delay:
		lift := c.net.Impose(in.rules(f, rng))
		time.Sleep(f.For)
		lift(rng.IntN(2) == 0)
	case SlowDisk:
		return in.badDisk(n, f, disk.Faults{Delay: time.Duration(2+rng.IntN(80)) * time.Millisecond})
	case FailDisk:
		ok, err := in.badDisk(n, f, disk.Faults{Fail: []float64{0.02, 0.2, 1}[rng.IntN(3)]})
		if ok { // its operator replaced the cable
			n.stop(syscall.SIGKILL, time.Minute)
			n.start()
		}
		return ok, err
	case StallDisk:
		d := n.theDisk()
		if d == nil {
			return false, nil
		}
		release := d.Stall()
		time.Sleep(f.For)
		release()
	case PowerCut:
		return in.powerCut(f, rng, n)
	case PowerAll:
		return in.powerCut(f, rng, in.members()...)
	case FillDisk, FillUp:
		return in.fillDisk(f, rng)
	case Clock:
		jumps := []time.Duration{200 * time.Millisecond, 5 * time.Second, time.Hour, 50 * time.Hour, 10 * 365 * 24 * time.Hour}
		off := jumps[rng.IntN(len(jumps))]
		if rng.IntN(2) == 0 {
			off = -off
		}
		c.note("clock of %s jumps by %v", n.id, off)
		if err := n.setClock(off); err != nil {
			return false, err
		}
		time.Sleep(f.For)
		return true, n.setClock(0)
	case Rolling:
		return in.rolling()
	case Lag:
		n.stop(syscall.SIGKILL, time.Minute)
		time.Sleep(f.For)
		n.start()
	case Replace:
		return in.replace(n, f)
	case Grow:
		return in.grow(f)
	default:
		return false, fmt.Errorf("unknown kind of fault %q", f.Kind)
	}
	return true, nil
}

// members are the nodes of the first places, which every episode has.
func (in *injector) members() []*node { return in.c.list()[:in.nodes] }

func (in *injector) each(do func(*node)) {
	var wg sync.WaitGroup
	for _, n := range in.members() {
		wg.Go(func() { do(n) })
	}
	wg.Wait()
}

// rules of a fault of the network.
func (in *injector) rules(f Fault, rng *rand.Rand) Rules {
	out := Rules{}
	minority := map[int]bool{f.Target: true}
	if in.nodes >= 5 && rng.IntN(2) == 0 {
		minority[(f.Target+1+rng.IntN(in.nodes-1))%in.nodes] = true
	}
	clients := rng.IntN(2) == 0 // they are cut off from the minority too
	inward := rng.IntN(2) == 0
	delay := time.Duration(20+rng.IntN(280)) * time.Millisecond
	for a := outside; a < in.nodes; a++ {
		for b := outside; b < in.nodes; b++ {
			if a == b {
				continue
			}
			at := [2]int{a, b}
			ends := a == outside || b == outside
			switch f.Kind {
			case Partition:
				if minority[a] != minority[b] && (!ends || clients) {
					out[at] = Rule{Cut: true}
				}
			case OneWay:
				hit := minority[a] && !minority[b]
				if inward {
					hit = minority[b] && !minority[a]
				}
				if hit && (!ends || clients) {
					out[at] = Rule{Cut: true}
				}
			case Links:
				if !ends && rng.IntN(3) == 0 {
					out[at] = Rule{Cut: true}
				}
			case Delay:
				if minority[a] || minority[b] {
					out[at] = Rule{Delay: delay}
				}
			}
		}
	}
	return out
}

func (in *injector) badDisk(n *node, f Fault, how disk.Faults) (bool, error) {
	d := n.theDisk()
	if d == nil {
		return false, nil
	}
	d.Set(how)
	time.Sleep(f.For)
	d.Set(disk.Faults{})
	return true, nil
}

// powerCut takes the power of nodes away, all at the same moment.
func (in *injector) powerCut(f Fault, rng *rand.Rand, nodes ...*node) (bool, error) {
	locked := nodes // in order of their places, so that two cuts don't wait for each other
	unlock := func() {
		for _, n := range locked {
			n.power.Unlock()
		}
		locked = nil
	}
	defer unlock()
	for _, n := range nodes {
		n.power.Lock()
	}
	for _, n := range nodes {
		if n.theDisk() == nil {
			return false, nil
		}
	}
	for _, n := range nodes {
		n.theDisk().Cut()
	}
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { n.stop(syscall.SIGKILL, time.Minute) })
	}
	wg.Wait()
	var first error
	for _, n := range nodes {
		loss, err := n.theDisk().Restore(rng)
		if err != nil && first == nil {
			first = fmt.Errorf("disk of %s: %w", n.id, err)
		}
		in.c.note("power cut of %s lost %+v", n.id, loss)
		in.mu.Lock()
		in.loss.Names += loss.Names
		in.loss.Pages += loss.Pages
		in.loss.Torn += loss.Torn
		in.loss.Lengths += loss.Lengths
		in.loss.Unsynced += loss.Unsynced
		in.mu.Unlock()
	}
	unlock()
	time.Sleep(f.For)
	for _, n := range nodes {
		n.start()
	}
	return true, first
}

// fillDisk fills the disk of one node, or of a majority.
func (in *injector) fillDisk(f Fault, rng *rand.Rand) (bool, error) {
	count := 1
	if rng.IntN(2) == 0 {
		count = in.nodes/2 + 1
	}
	leave := uint64(minFree / 2)
	if f.Kind == FillUp {
		leave = 0
	}
	var empty []func()
	defer func() {
		for _, e := range empty {
			e()
		}
	}()
	for i := range count {
		n := in.c.at((f.Target + i) % in.nodes)
		if n.theDisk() == nil {
			return false, nil
		}
		e, err := n.fill(leave)
		if err != nil {
			return true, err
		}
		empty = append(empty, e)
	}
	time.Sleep(f.For)
	return true, nil
}

// rolling restarts every node in order, each after the one before has come
// back: nobody should be without a majority.
func (in *injector) rolling() (bool, error) {
	for _, n := range in.members() {
		if !n.stop(syscall.SIGTERM, 40*time.Second) {
			n.start()
			return true, fmt.Errorf("node %s did not stop within 40 s of SIGTERM", n.id)
		}
		n.start()
		ctx, cancel := context.WithTimeout(context.Background(), recovery)
		err := in.c.healthy(ctx, in.nodes)
		cancel()
		if err != nil {
			return true, fmt.Errorf("after the restart of %s: %w", n.id, err)
		}
	}
	return true, nil
}

// ready waits until the group can bear to lose a node for good.
func (in *injector) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return in.c.healthy(ctx, in.nodes) == nil
}

// remove takes a node out of the group; its process may be dead.
func (in *injector) remove(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	err := in.c.admin.RemoveNode(ctx, id)
	if err != nil && strings.Contains(err.Error(), "no member") {
		return nil // an answer got lost
	}
	return err
}

// replace destroys a node with its disk and lets another take its place.
func (in *injector) replace(n *node, f Fault) (bool, error) {
	if !in.ready() {
		return false, nil
	}
	n.stop(syscall.SIGKILL, time.Minute)
	time.Sleep(f.For / 4)
	if err := in.remove(n.id); err != nil {
		return true, fmt.Errorf("remove %s: %w", n.id, err)
	}
	old := n.id
	n.power.Lock()
	err := n.discard()
	if err == nil {
		err = n.prepare(in.c.newID())
	}
	n.power.Unlock()
	if err != nil {
		return true, err
	}
	n.start()
	ctx, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	if err := in.c.healthy(ctx, in.nodes); err != nil {
		return true, fmt.Errorf("node %s in place of %s: %w", n.id, old, err)
	}
	return true, nil
}

// grow adds a node and removes it again.
func (in *injector) grow(f Fault) (bool, error) {
	if !in.ready() {
		return false, nil
	}
	n, err := in.c.add()
	if err != nil {
		return false, err
	}
	defer func() {
		n.leave()
		_ = n.discard()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	if err := in.c.healthy(ctx, in.nodes+1); err != nil {
		return true, fmt.Errorf("one more node, %s: %w", n.id, err)
	}
	time.Sleep(f.For / 3)
	if err := in.remove(n.id); err != nil {
		return true, fmt.Errorf("remove %s: %w", n.id, err)
	}
	return true, nil
}
