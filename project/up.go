package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// UpOptions describe a local cluster of processes.
type UpOptions struct {
	Dir      string
	Replay   int // replay nodes: 1, 3 or 5
	Workers  int
	Learners int // 0 is 1; one trains, the others compute part of its micro-batches
	Log      *slog.Logger
	Progress io.Writer
	Verbose  bool
	// Metrics lets every process serve Prometheus on a free port of
	// 127.0.0.1; its address is in Dir/NAME/metrics-addr.
	Metrics bool
	// Exe is the skein binary to start; "" is the running one.
	Exe string
}

// Validate reports every problem at once.
func (o UpOptions) Validate() error {
	var errs []error
	if o.Replay != 1 && o.Replay != 3 && o.Replay != 5 {
		errs = append(errs, fmt.Errorf("--replay: %d: use 1, 3 or 5, so that a majority can decide", o.Replay))
	}
	if o.Workers < 1 {
		errs = append(errs, fmt.Errorf("--workers: %d: at least one must roll out", o.Workers))
	}
	if o.Learners < 0 {
		errs = append(errs, fmt.Errorf("--learners: %d: use 1, or more to share its work", o.Learners))
	}
	return errors.Join(errs...)
}

// Up runs a configuration on separate processes of this machine: replay nodes,
// workers and a learner, each kept alive, joined by mTLS. It ends when the run
// is finished, when a process proves broken, or when ctx ends; then it stops
// the processes in order. The same call goes on where it stopped.
func Up(ctx context.Context, c Config, o UpOptions) (Summary, error) {
	began := time.Now()
	if err := errors.Join(o.Validate(), onRollouts(c)); err != nil {
		return Summary{}, err
	}
	u, err := newFleet(ctx, c, o)
	if err != nil {
		return Summary{}, err
	}
	defer u.stop()
	st, err := u.start(ctx)
	if err != nil {
		return Summary{}, err
	}
	defer st.Close()
	watching, stopWatching := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { follow(watching, st, c, o.Progress, u.health(st), u.preparing) })
	runErr := u.await(ctx, st)
	stopWatching()
	wg.Wait()
	return conclude(ctx, st, c, o.Dir, began, u.peakMB, runErr)
}

// fleet is the set of processes of one local cluster.
type fleet struct {
	c    Config
	o    UpOptions
	conf string   // resolved configuration file
	lock *os.File // on the folder
	// The replay nodes outlive the others, so that these can give back what
	// they hold.
	nodes, others       context.Context
	endNodes, endOthers context.CancelFunc

	mu      sync.Mutex
	procs   []*Proc // replay nodes first
	learner *Proc   // the one that starts the run
	peaks   map[string]float64
}

func newFleet(ctx context.Context, c Config, o UpOptions) (*fleet, error) {
	abs, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = abs
	if o.Exe == "" {
		if o.Exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("project: finding the skein binary: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "logs"), 0o755); err != nil {
		return nil, fmt.Errorf("project: run folder: %w", err)
	}
	if err := checkSpace(o.Dir, replay.DefaultLocalOptions().MinFreeBytes); err != nil {
		return nil, err
	}
	if err := claimDir(o.Dir, layout{Kind: kindCluster, Run: c.Run, Replay: o.Replay}); err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	f := &fleet{c: c, o: o, conf: filepath.Join(o.Dir, "config.yaml"), lock: lock, peaks: map[string]float64{}}
	f.nodes, f.endNodes = context.WithCancel(context.WithoutCancel(ctx))
	f.others, f.endOthers = context.WithCancel(f.nodes)
	return f, nil
}

// start brings the replay nodes up one after the other, then the rest, and
// returns a client.
func (f *fleet) start(ctx context.Context) (*Store, error) {
	deadline, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var first string
	token := filepath.Join(replayDir(f.o.Dir, 0), "replay", "token")
	for i := range f.o.Replay {
		name := fmt.Sprintf("replay-%d", i)
		args := []string{"node", "--role", "replay", "--id", name, "--dir", replayDir(f.o.Dir, i)}
		if i > 0 {
			args = append(args, "--join", first, "--token-file", token)
		}
		p := f.spawn(f.nodes, name, args)
		addr, err := awaitAddr(deadline, p, filepath.Join(replayDir(f.o.Dir, i), "replay", "addr"))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			first = addr
		}
	}
	st, err := f.connect(deadline)
	if err != nil {
		return nil, err
	}
	if err := f.configure(deadline, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	join := []string{"--join", first, "--token-file", token}
	dir := func(name string) []string { return []string{"--id", name, "--dir", filepath.Join(f.o.Dir, name)} }
	for i := range f.o.Workers {
		name := fmt.Sprintf("worker-%d", i)
		f.spawn(f.others, name, append(append([]string{"node", "--role", "worker"}, dir(name)...), join...))
	}
	f.learner = f.spawn(f.others, "learner-0", append(append([]string{"node", "--role", "learner", "--config", f.conf}, dir("learner-0")...), join...))
	for i := 1; i < f.o.Learners; i++ { // they take the run when it is there
		name := fmt.Sprintf("learner-%d", i)
		f.spawn(f.others, name, append(append([]string{"node", "--role", "learner"}, dir(name)...), join...))
	}
	return st, nil
}

// configure writes the configuration for the learner, unless the run has
// another one. Children start in this process's folder, so relative paths in
// it mean the same for them.
func (f *fleet) configure(ctx context.Context, st *Store) error {
	if err := sameRun(ctx, st, f.c); err != nil {
		return err
	}
	text, err := f.c.YAML()
	if err != nil {
		return err
	}
	return writeFile(f.conf, text)
}

func (f *fleet) spawn(ctx context.Context, name string, args []string) *Proc {
	if f.o.Verbose {
		args = append(args, "--verbose")
	}
	if f.o.Metrics {
		args = append(args, "--metrics", "127.0.0.1:0")
	}
	p := StartProc(ctx, f.o.Exe, filepath.Join(f.o.Dir, "logs"), ProcSpec{Name: name, Args: args}, f.o.Log)
	f.mu.Lock()
	f.procs = append(f.procs, p)
	f.mu.Unlock()
	return p
}

// awaitAddr waits for the address file that a serving node writes.
func awaitAddr(ctx context.Context, p *Proc, path string) (string, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if addr, err := readFirstLine(path); err == nil && addr != "" {
			return addr, nil
		}
		select {
		case <-p.Done():
			return "", errors.Join(fmt.Errorf("project: %s did not start", p.spec.Name), p.Err())
		case <-ctx.Done():
			return "", fmt.Errorf("project: %s wrote no address in time; its last words:\n%s", p.spec.Name, p.tail(6))
		case <-tick.C:
		}
	}
}

// connect retries until the nodes answer.
func (f *fleet) connect(ctx context.Context) (*Store, error) {
	for {
		st, err := connectDir(ctx, f.o.Dir, layout{Replay: f.o.Replay})
		if err == nil {
			return st, nil
		}
		t := time.NewTimer(200 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("project: the replay nodes do not answer: %w", err)
		case <-t.C:
		}
	}
}

// await returns when the run is finished, a process is broken, or ctx ends.
func (f *fleet) await(ctx context.Context, st *Store) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := f.broken(); err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		s, err := st.Status(call, f.c.Run)
		cancel()
		if err == nil && s.Finished {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// broken returns the error of the first process that was given up, and keeps
// the processes' peak memory up to date.
func (f *fleet) broken() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		s := p.Status()
		f.peaks[s.Name] = max(f.peaks[s.Name], s.PeakMB)
		select {
		case <-p.Done():
			if err := p.Err(); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// health describes the nodes in a few words: who is down, and the workers'
// tokens per second.
func (f *fleet) health(st *Store) health {
	return func(ctx context.Context) string {
		f.mu.Lock()
		var down []string
		up := 0
		for _, p := range f.procs {
			if s := p.Status(); s.State == "running" {
				up++
			} else {
				down = append(down, fmt.Sprintf("%s %s", s.Name, s.State))
			}
		}
		total := len(f.procs)
		f.mu.Unlock()
		text := fmt.Sprintf(" | %d/%d up", up, total)
		if len(down) > 0 {
			text += " (" + strings.Join(down, ", ") + ")"
		}
		cs, err := st.Cluster(ctx)
		if err != nil {
			return text + ", no leader"
		}
		rate := 0.0
		for _, n := range cs.Nodes {
			if n.Role == cluster.RoleWorker && n.Alive {
				rate += n.TokensPerSecond
			}
		}
		return text + fmt.Sprintf(", leader %s, %.0f tok/s sampled", cs.Leader, rate)
	}
}

// preparing is the learner's last word, while it warms the run up.
func (f *fleet) preparing() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.learner.tail(1); last != "" {
		return last
	}
	return "the learner loads the model"
}

func (f *fleet) peakMB() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := peakRSSMB(os.Getpid())
	for _, p := range f.peaks {
		sum += p
	}
	return sum
}

// stop ends every process and waits: workers and learner, then replay nodes.
func (f *fleet) stop() {
	f.endOthers()
	for _, p := range f.procs[min(f.o.Replay, len(f.procs)):] {
		<-p.Done()
	}
	f.endNodes()
	for _, p := range f.procs {
		<-p.Done()
	}
	_ = f.lock.Close()
}
