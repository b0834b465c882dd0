// Package disk is a file system for fault injection: a FUSE mount over a
// folder that knows what has been synced and what has not.
//
// Everything passes through to the folder at once, so that readers see what
// was written. Beside it an undo journal keeps, for all that no fsync has
// covered, what was there before. [Disk.PowerCut] takes a random part of that
// back, as a machine does that loses power: pages that were never synced are
// old, new, or torn at a sector; a file's new length is there or not; a file
// that was created, renamed or removed since the last sync is so or is not.
//
// The model of namespace changes is that of a journaling file system (ext4,
// xfs): they become durable in order, and any fsync of a file or folder makes
// all earlier ones durable. With Strict it is that of POSIX: a folder's changes
// are durable when that folder is synced, and nothing else helps.
//
// The disk can also be slow, stall, or fail. Linux only, and only for root.
package disk

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Disk is one mounted file system. Safe for concurrent use.
type Disk struct {
	back, mnt, trash string
	strict           bool

	server *fuse.Server
	dead   atomic.Bool // power is off: every operation fails

	j *journal

	mu     sync.Mutex
	faults Faults
	gate   *gate // not nil: writes and syncs wait until it is open
}

type gate struct {
	ch   chan struct{}
	once sync.Once
}

func (g *gate) open() { g.once.Do(func() { close(g.ch) }) }

// Faults of a disk that works, but badly. The zero value is a good disk.
type Faults struct {
	// Delay is added to every write and every sync.
	Delay time.Duration
	// Fail makes that share of writes and syncs fail with EIO, 0 to 1.
	Fail float64
}

// Mount makes dir back appear at mnt; trash is a folder on back's file system
// and outside of it. All three must exist.
func Mount(back, mnt, trash string, strict bool) (*Disk, error) {
	d := &Disk{back: back, mnt: mnt, trash: trash, strict: strict, j: newJournal(back, trash)}
	if err := d.mount(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Disk) mount() error {
	var st syscall.Stat_t
	if err := syscall.Stat(d.back, &st); err != nil {
		return fmt.Errorf("disk: %s: %w", d.back, err)
	}
	root := &node{d: d}
	root.RootData = &fs.LoopbackRoot{
		Path: d.back, Dev: uint64(st.Dev), //nolint:unconvert // differs by platform
		NewNode: func(r *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
			return &node{LoopbackNode: fs.LoopbackNode{RootData: r}, d: d}
		},
	}
	second := time.Second
	srv, err := fs.Mount(d.mnt, root, &fs.Options{
		EntryTimeout: &second, AttrTimeout: &second,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, FsName: "skein-chaos", Name: "skein", MaxBackground: 64,
			Logger: log.New(io.Discard, "", 0),
		},
	})
	if err != nil {
		return fmt.Errorf("disk: mount %s: %w (needs root and /dev/fuse)", d.mnt, err)
	}
	d.server = srv
	return nil
}

// Set changes how badly the disk works.
func (d *Disk) Set(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Stall makes writes and syncs wait until the returned function is called, or
// Cut or Release.
func (d *Disk) Stall() (release func()) {
	g := &gate{ch: make(chan struct{})}
	d.mu.Lock()
	old := d.gate
	d.gate = g
	d.mu.Unlock()
	if old != nil {
		old.open()
	}
	return func() {
		d.mu.Lock()
		if d.gate == g {
			d.gate = nil
		}
		d.mu.Unlock()
		g.open()
	}
}

// Release ends a stall. A process that waits for its disk can't be killed.
func (d *Disk) Release() {
	d.mu.Lock()
	g := d.gate
	d.gate = nil
	d.mu.Unlock()
	if g != nil {
		g.open()
	}
}

// enter is called by every write and sync.
func (d *Disk) enter() syscall.Errno {
	d.mu.Lock()
	f, g := d.faults, d.gate
	d.mu.Unlock()
	if g != nil {
		<-g.ch
	}
	if f.Delay > 0 {
		time.Sleep(f.Delay)
	}
	if d.dead.Load() || f.Fail > 0 && rand.Float64() < f.Fail {
		return syscall.EIO
	}
	return 0
}

// Cut takes the power away: from now on every operation fails and nothing
// more becomes durable. The process that uses the disk should be killed next.
func (d *Disk) Cut() {
	d.j.mu.Lock()
	d.dead.Store(true)
	d.j.mu.Unlock()
	d.Release()
	d.Set(Faults{})
}

// Restore gives the power back after Cut, once nobody uses the disk any more:
// what was not synced is lost in part, as rng decides, and the disk is mounted
// again. It says what was lost.
func (d *Disk) Restore(rng *rand.Rand) (Loss, error) {
	if err := d.unmount(); err != nil {
		return Loss{}, err
	}
	loss, err := d.j.undo(rng, d.strict)
	if err != nil {
		return loss, err
	}
	d.dead.Store(false)
	return loss, d.mount()
}

// Close unmounts.
func (d *Disk) Close() error {
	d.Cut()
	err := d.unmount()
	d.j.close()
	return err
}

func (d *Disk) unmount() error {
	if d.server == nil {
		return nil
	}
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = unix.Unmount(d.mnt, 0); err == nil || errors.Is(err, unix.EINVAL) {
			err = nil
			break
		}
	}
	if err != nil {
		if derr := unix.Unmount(d.mnt, unix.MNT_DETACH); derr != nil {
			return fmt.Errorf("disk: unmount %s: %w", d.mnt, errors.Join(err, derr))
		}
	}
	d.server.Wait()
	d.server = nil
	return nil
}

// Available says why a disk can't be mounted here, or nil.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("disk: not root")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return f.Close()
}
