package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// parentPipe tells a child process that its standard input is a pipe held by
// its supervisor: end of file there means the supervisor is gone.
const parentPipe = "SKEIN_PARENT_PIPE"

// ProcSpec is one child process of a local cluster.
type ProcSpec struct {
	Name string
	Args []string // of this same executable
	Env  []string // added to the environment
}

// Proc keeps one child process alive: whenever it ends without being asked to,
// it is started again after a delay that grows with quick failures.
type Proc struct {
	spec ProcSpec
	exe  string
	logs string
	log  *slog.Logger

	mu       sync.Mutex
	pid      int
	restarts int
	state    string // "starting", "running", "restarting", "done", "failed"
	done     chan struct{}
	err      error
}

// Bounds of a child's restarts: a child that ends quicklyEnds times in a row
// within quickEnd of its start is broken, not unlucky.
const (
	quickEnd     = 3 * time.Second
	quickEnds    = 5
	restartDelay = 300 * time.Millisecond
	stopTimeout  = 20 * time.Second
)

// StartProc starts and supervises a child until ctx ends, it exits with
// status 0, or it proves broken. Its output goes to logs/NAME.log.
func StartProc(ctx context.Context, exe, logs string, spec ProcSpec, log *slog.Logger) *Proc {
	p := &Proc{spec: spec, exe: exe, logs: logs, log: log, state: "starting", done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := p.supervise(ctx)
		p.mu.Lock()
		p.pid, p.err, p.state = 0, err, "done"
		if err != nil {
			p.state = "failed"
		}
		p.mu.Unlock()
	}()
	return p
}

func (p *Proc) supervise(ctx context.Context) error {
	quick := 0
	for {
		began := time.Now()
		err := p.once(ctx)
		if ctx.Err() != nil || err == nil {
			return nil //nolint:nilerr // asked to stop: how it went is in its log
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == ExitVerdict {
			return fmt.Errorf("project: %s ended the run: %s", p.spec.Name, p.lastError())
		}
		if quick++; time.Since(began) > quickEnd {
			quick = 0
		}
		if quick >= quickEnds {
			return fmt.Errorf("project: %s ended %d times within %s of its start: %w; its last words:\n%s", p.spec.Name, quick, quickEnd, err, p.tail(6))
		}
		p.mu.Lock()
		p.restarts++
		p.state = "restarting"
		p.mu.Unlock()
		p.log.Warn("process ended; starting it again", "process", p.spec.Name, "error", err)
		t := time.NewTimer(restartDelay << quick)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// once runs the child one time. nil means it exited with status 0.
func (p *Proc) once(ctx context.Context) error {
	f, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("project: log of %s: %w", p.spec.Name, err)
	}
	defer f.Close()
	cmd := exec.Command(p.exe, p.spec.Args...)
	cmd.Env = append(append(os.Environ(), parentPipe+"=1"), p.spec.Env...)
	cmd.Stdout, cmd.Stderr = f, f
	// Its own process group: Ctrl-C at the terminal reaches the supervisor
	// only, which then stops the children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("project: starting %s: %w", p.spec.Name, err)
	}
	p.mu.Lock()
	p.pid, p.state = cmd.Process.Pid, "running"
	p.mu.Unlock()
	wait := make(chan error, 1)
	go func() { wait <- cmd.Wait() }()
	select {
	case err = <-wait:
	case <-ctx.Done():
		err = stop(cmd.Process, wait)
	}
	p.mu.Lock()
	p.pid = 0
	p.mu.Unlock()
	return err
}

// stop asks a process to end and kills it when it does not in time.
func stop(proc *os.Process, wait <-chan error) error {
	_ = proc.Signal(syscall.SIGTERM)
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case err := <-wait:
		return err
	case <-t.C:
		_ = proc.Kill()
		return errors.Join(fmt.Errorf("project: killed after ignoring SIGTERM for %s", stopTimeout), <-wait)
	}
}

// ProcStatus is a child's state at one moment.
type ProcStatus struct {
	Name     string  `json:"name"`
	PID      int     `json:"pid"`
	State    string  `json:"state"`
	Restarts int     `json:"restarts"`
	PeakMB   float64 `json:"peak_rss_mb"` // of the present incarnation
}

// Status tells how the child is.
func (p *Proc) Status() ProcStatus {
	p.mu.Lock()
	s := ProcStatus{Name: p.spec.Name, PID: p.pid, State: p.state, Restarts: p.restarts}
	p.mu.Unlock()
	if s.PID != 0 {
		s.PeakMB = peakRSSMB(s.PID)
	}
	return s
}

// Done is closed when the child will not be started again.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Err says, after Done, why a broken child was given up.
func (p *Proc) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *Proc) logPath() string { return filepath.Join(p.logs, p.spec.Name+".log") }

// tail returns the last lines of the child's log.
func (p *Proc) tail(lines int) string {
	b, err := readEnd(p.logPath(), 64<<10)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// readEnd returns at most the last n bytes of a file.
func readEnd(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-n), n))
}

// lastError is the message the child ended with: what follows the last
// "skein: " that starts a line of its log.
func (p *Proc) lastError() string {
	text := "\n" + p.tail(50)
	if at := strings.LastIndex(text, "\nskein: "); at >= 0 {
		return text[at+len("\nskein: "):]
	}
	return strings.TrimSpace(text)
}

// WatchParent cancels when the supervising process dies, so that no child
// outlives a killed supervisor. It does nothing in a process started by hand.
func WatchParent(cancel context.CancelFunc) {
	if os.Getenv(parentPipe) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
}

// peakRSSMB is the peak resident memory of a process in MiB; 0 when unknown.
func peakRSSMB(pid int) float64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err == nil {
				return kb / 1024
			}
		}
	}
	return 0
}
