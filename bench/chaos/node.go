package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skein-rl/skein/bench/chaos/disk"
	"github.com/skein-rl/skein/internal/clock"
)

// volumeBytes is the size of a node's disk, minFree the watermark of its node.
const (
	volumeBytes = 448 << 20
	minFree     = 96 << 20
)

// node is one place of the cluster: a process of the real binary with its
// folder, its disk, its clock and its proxy. A supervisor starts the process
// again whenever it ends while nothing holds it down.
type node struct {
	c     *cluster
	place int

	power sync.Mutex // held by who takes the disk's power, or the disk, away

	mu       sync.Mutex
	id       string
	gen      int    // of the folder: a replaced node gets a new one
	dir      string // --dir
	vol      string // backing volume, "" = none
	disk     *disk.Disk
	listen   string
	address  string // of the proxy
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd has ended
	expected bool          // its end is ours
	down     int           // reasons for not running
	gone     bool          // no longer part of the cluster
	change   chan struct{} // closed when down or gone changes

	restarts, crashes int
}

func (n *node) root() string { return filepath.Join(n.c.base, fmt.Sprintf("p%d.%d", n.place, n.gen)) }

func (n *node) clockFile() string { return filepath.Join(n.c.base, fmt.Sprintf("clock%d", n.place)) }

func (n *node) logFile() string { return filepath.Join(n.c.base, n.id+".log") }

// back is where the node's files are when no file system is in between.
func (n *node) back() string {
	if n.vol != "" {
		return filepath.Join(n.vol, "back")
	}
	return n.dir
}

// prepare makes a new folder, or a new disk with one.
func (n *node) prepare(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.id = id
	n.gen++
	root := n.root()
	n.dir = filepath.Join(root, "data")
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	if !n.c.opt.Disk {
		return nil
	}
	n.vol = filepath.Join(root, "vol")
	if err := os.Mkdir(n.vol, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", n.vol, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", volumeBytes)); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", n.vol, err)
	}
	for _, d := range []string{"back", "trash"} {
		if err := os.Mkdir(filepath.Join(n.vol, d), 0o700); err != nil {
			return err
		}
	}
	var err error
	n.disk, err = disk.Mount(n.back(), n.dir, filepath.Join(n.vol, "trash"), n.c.opt.Strict)
	return err
}

// discard takes the folder away; the process must have ended.
func (n *node) discard() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	if n.disk != nil {
		errs = append(errs, n.disk.Close())
		n.disk = nil
	}
	if n.vol != "" {
		errs = append(errs, unix.Unmount(n.vol, unix.MNT_DETACH))
		n.vol = ""
	}
	return errors.Join(append(errs, os.RemoveAll(n.root()))...)
}

// freeAddr is a port nobody listens on now. It lies below the range that the
// kernel gives to those who dial, so that it stays free.
func freeAddr() (string, error) {
	for range 200 {
		addr := "127.0.0.1:" + strconv.Itoa(12000+rand.IntN(18000))
		if ln, err := net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", errors.New("no free port between 12000 and 30000")
}

func (n *node) args() []string {
	args := []string{"node", "--role", "replay", "--dir", n.dir, "--id", n.id, "--listen", n.listen, "--advertise", n.address,
		"--heartbeat", n.c.opt.Heartbeat.String(), "--snapshot-every", "200", "--min-free-bytes", strconv.Itoa(minFree)}
	if join := n.c.joinAddrs(n.place); len(join) > 0 {
		args = append(args, "--join", strings.Join(join, ","), "--token-file", n.c.tokenFile())
	}
	return args
}

// supervise runs the process until the node is gone.
func (n *node) supervise() {
	for {
		n.mu.Lock()
		gone, down, change := n.gone, n.down, n.change
		n.mu.Unlock()
		if gone {
			return
		}
		if down > 0 {
			<-change
			continue
		}
		if err := n.run(); err != nil {
			n.c.note("node %s did not start: %v", n.id, err)
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// run is one life of the process.
func (n *node) run() error {
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	n.mu.Lock()
	if n.down > 0 || n.gone {
		n.mu.Unlock()
		return nil
	}
	cmd := exec.Command(n.c.opt.Binary, n.args()...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), clock.OffsetEnv+"="+n.clockFile(), "GOMEMLIMIT=256MiB", "GOTRACEBACK=all")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, _ = fmt.Fprintf(log, "--- chaos: start at %v\n", n.c.now())
	if err := cmd.Start(); err != nil {
		n.mu.Unlock()
		return err
	}
	exited := make(chan struct{})
	n.cmd, n.exited, n.expected = cmd, exited, false
	n.restarts++
	n.mu.Unlock()
	n.c.net.Process(n.place, cmd.Process.Pid)
	err = cmd.Wait()
	n.c.net.Process(n.place, 0)
	n.mu.Lock()
	n.cmd = nil
	expected := n.expected
	if !expected {
		n.crashes++
	}
	close(exited)
	n.mu.Unlock()
	_, _ = fmt.Fprintf(log, "--- chaos: ended at %v: %v\n", n.c.now(), err)
	if !expected {
		n.c.note("node %s ended by itself: %v", n.id, err)
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

func (n *node) signalled() {
	close(n.change)
	n.change = make(chan struct{})
}

// stop holds the node down and ends its process with a signal; when it has not
// ended within limit it is killed, and false returned.
func (n *node) stop(sig syscall.Signal, limit time.Duration) bool {
	n.mu.Lock()
	n.down++
	n.signalled()
	cmd, exited, d := n.cmd, n.exited, n.disk
	n.expected = true
	n.mu.Unlock()
	if cmd == nil {
		return true
	}
	if sig == syscall.SIGKILL && d != nil {
		d.Release()
	}
	_ = cmd.Process.Signal(sig)
	select {
	case <-exited:
		return true
	case <-time.After(limit):
	}
	if d != nil {
		d.Release()
	}
	_ = cmd.Process.Signal(syscall.SIGKILL)
	<-exited
	return sig == syscall.SIGKILL
}

// start undoes one stop.
func (n *node) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down--
	n.signalled()
}

// leave ends the supervisor too.
func (n *node) leave() {
	n.mu.Lock()
	n.gone = true
	n.signalled()
	n.mu.Unlock()
	n.stop(syscall.SIGKILL, time.Minute)
}

func (n *node) signal(sig syscall.Signal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(sig)
	}
}

func (n *node) theDisk() *disk.Disk {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.disk
}

// setClock makes the node's wall clock wrong by off.
func (n *node) setClock(off time.Duration) error {
	tmp := n.clockFile() + ".tmp"
	if err := os.WriteFile(tmp, []byte(strconv.FormatInt(int64(off), 10)+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, n.clockFile())
}

// fill leaves so many bytes free on the node's volume; the returned function
// gives them back.
func (n *node) fill(leave uint64) (empty func(), err error) {
	n.mu.Lock()
	vol := n.vol
	n.mu.Unlock()
	if vol == "" {
		return func() {}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(vol, &st); err != nil {
		return nil, err
	}
	name := filepath.Join(vol, "filler"+strconv.Itoa(rand.Int()))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if free := st.Bavail * uint64(st.Bsize); free > leave {
		err := unix.Fallocate(int(f.Fd()), 0, 0, int64(free-leave))
		for n := free - leave; errors.Is(err, unix.ENOSPC) && n > 1<<20; n -= 1 << 20 { // the node was quicker
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(n-1<<20))
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			return nil, errors.Join(err, os.Remove(name))
		}
	}
	return func() { _ = os.Remove(name) }, nil
}
