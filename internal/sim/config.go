package sim

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Config is a cluster and what happens to it.
type Config struct {
	// Seed decides everything that is drawn.
	Seed uint64
	// Nodes are machines; workers are spread over them, and die with them.
	Nodes, Workers int
	// Learners work for every run at once, each as its own holder: what a standby
	// and a learner that was cut off do to each other.
	Learners int
	// Runs share the cluster; worker i serves run i modulo Runs.
	Runs int
	// Groups a worker keeps in flight.
	Groups int
	// Steps that every run is to commit; it is finished then.
	Steps uint64
	// Spec of every run; Run is set here.
	Spec replay.RunSpec
	// Rollout is how long one member takes on a worker of speed 1; workers'
	// speeds are drawn around 1 with a standard deviation (of the logarithm) of
	// Speeds. Step is the learner's time for a batch, Fetch a worker's for a new
	// adapter.
	Rollout, Step, Fetch Spread
	Speeds               float64
	// Fail is the share of rollouts that fail, Empty that of batches which the
	// learner gives up untrained.
	Fail, Empty float64
	// LeaseTTL and the waits and bounds of calls, as in rollout.WorkerConfig and
	// learner.LoopConfig.
	LeaseTTL, TakeWait, LeaseWait, CallTimeout time.Duration
	// EvalEvery asks for an evaluation of EvalCount tasks after every so many
	// steps; 0 = never.
	EvalEvery uint64
	EvalCount uint32
	Net       Net
	Faults    Faults
	// Stall is how long a run may stand still while a worker and a learner of it
	// live and there is a leader; Limit ends the simulation.
	Stall, Limit time.Duration
	// Replica folds every command a second time, on a state of its own and through
	// the codec, and compares the states at the end.
	Replica bool
	// Apply replaces replay.Apply: tests put faults into the fold with it,
	// benchmarks a stopwatch around it.
	Apply func(replay.KV, replay.Command) (replay.Result, error)
	// Trace gets a line per command and fault; nil = none.
	Trace io.Writer
}

// Net is what happens to messages.
type Net struct {
	Delay Spread // one way
	// Commit is from the leader's proposal until it is applied.
	Commit Spread
	// Loss and Repeat are the shares that never arrive and that arrive twice.
	Loss, Repeat float64
}

// Faults are mean times between two of a kind, anywhere in the cluster; 0 =
// never.
type Faults struct {
	Worker    time.Duration // a worker dies; half come back under their name
	Node      time.Duration // all workers of a machine die at once
	Drain     time.Duration // a worker is told to stop, and another one comes
	Slow      time.Duration // a worker becomes twenty times slower for a while
	Partition time.Duration // a worker or learner is cut off for a while
	Learner   time.Duration // a learner dies, more often right around its commit
	Leader    time.Duration // the leader changes, with another clock
	Garbage   time.Duration // a worker sends what no group has room for
	// Down is for how long.
	Down Spread
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Nodes", c.Nodes}, {"Workers", c.Workers}, {"Learners", c.Learners}, {"Runs", c.Runs}, {"Groups", c.Groups}, {"Steps", int(c.Steps)},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("sim: %s is %d; give at least 1", f.name, f.value))
		}
	}
	if c.Workers < c.Runs {
		errs = append(errs, fmt.Errorf("sim: Workers is %d for %d Runs; give at least one each", c.Workers, c.Runs))
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"Rollout", c.Rollout.Median}, {"Step", c.Step.Median}, {"LeaseTTL", c.LeaseTTL}, {"TakeWait", c.TakeWait}, {"LeaseWait", c.LeaseWait},
		{"CallTimeout", c.CallTimeout}, {"Net.Delay", c.Net.Delay.Median}, {"Stall", c.Stall}, {"Limit", c.Limit},
	} {
		if f.value <= 0 {
			errs = append(errs, fmt.Errorf("sim: %s is %v; give a positive duration", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// Default is a cluster without faults.
func Default() Config {
	return Config{
		Nodes: 4, Workers: 16, Learners: 1, Runs: 1, Groups: 2, Steps: 20,
		Spec: replay.RunSpec{GroupSize: 4, GroupsPerStep: 4, MaxStaleness: 2, TicketTTL: 2 * time.Minute, MaxAttempts: 3,
			BaseDigest: "base"},
		Rollout: Spread{4 * time.Second, .8}, Step: Spread{5 * time.Second, .2}, Fetch: Spread{200 * time.Millisecond, .5},
		LeaseTTL: time.Minute, TakeWait: 2 * time.Second, LeaseWait: 10 * time.Second, CallTimeout: 10 * time.Second,
		Net:   Net{Delay: Spread{time.Millisecond, .5}, Commit: Spread{2 * time.Millisecond, .5}},
		Stall: time.Hour, Limit: 1000 * time.Hour,
	}
}

// Draw is a cluster with faults, all of it drawn from the seed: what the tests
// and `make sim` run.
func Draw(seed uint64) Config {
	r := rng(seed)
	c := Default()
	c.Seed, c.Replica = seed, true
	c.Workers = 1 << r.intn(8)
	c.Nodes = 1 + r.intn(c.Workers)
	c.Learners = 1 + r.intn(2)
	c.Runs = 1 + r.intn(min(2, c.Workers))
	c.Groups = 1 + r.intn(3)
	c.Steps = uint64(8 + r.intn(16))
	c.Rollout.Sigma = 1.5 * r.float()
	c.Speeds = .5 * r.float()
	c.LeaseTTL = time.Duration(3+r.intn(40)) * time.Second
	c.Fail, c.Empty = .3*r.float()*r.float(), .1*r.float()
	s := &c.Spec
	s.GroupSize, s.GroupsPerStep = uint32(1+r.intn(6)), uint32(1+r.intn(8))
	s.MaxStaleness = uint64(r.intn(5))
	s.TicketTTL = time.Duration(20+r.intn(100)) * time.Second
	s.MaxAttempts = uint32(1 + r.intn(4))
	if r.chance(.5) {
		s.Stragglers = replay.Stragglers{Oversample: uint32(r.intn(3)), Drop: r.chance(.3)}
		if r.chance(.7) {
			s.Stragglers.DuplicateAfter = s.TicketTTL / time.Duration(2+r.intn(6))
		}
	}
	if r.chance(.4) {
		s.Curriculum = &replay.Curriculum{Tasks: uint64(1 + r.intn(500)), Target: replay.PerMillion / 2, Candidates: uint32(1 + r.intn(8)), Seed: seed}
	}
	if r.chance(.5) {
		c.EvalEvery, c.EvalCount = uint64(2+r.intn(4)), uint32(1+r.intn(10))
	}
	c.Net.Loss, c.Net.Repeat = .05*r.float(), .1*r.float()
	often := func(mean time.Duration) time.Duration {
		if r.chance(.25) {
			return 0
		}
		return time.Duration((.2 + r.float()) * float64(mean))
	}
	c.Faults = Faults{
		Worker: often(20 * time.Second), Node: often(2 * time.Minute), Drain: often(30 * time.Second), Slow: often(20 * time.Second),
		Partition: often(40 * time.Second), Learner: often(time.Minute), Leader: often(time.Minute), Garbage: often(10 * time.Second),
		Down: Spread{10 * time.Second, 1},
	}
	if c.Workers == 1 {
		c.Faults.Worker, c.Faults.Node = 5*c.Faults.Worker, 5*c.Faults.Node
	}
	return c
}
