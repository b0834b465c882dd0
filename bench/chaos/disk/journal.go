package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	pageSize = 4096
	sector   = 512
)

// Loss is what a power cut took.
type Loss struct {
	Names    int // creations, renames and removals undone
	Pages    int // pages whose unsynced content was lost
	Torn     int // pages of which a part was
	Lengths  int // files whose new length was lost
	Unsynced int // pages that were unsynced at the cut
}

// journal keeps what is needed to undo all that was not synced. A lock guards
// all of it: operations of the file system hold it while they change the
// folder, so that the journal and the folder agree at every moment.
type journal struct {
	back, trash string

	mu    sync.Mutex
	files map[uint64]*unsynced // by inode of the backing file
	names []change             // in order
	next  int                  // of trash names
}

// unsynced is what a file's last sync left behind.
type unsynced struct {
	f     *os.File
	size  int64            // at the last sync
	sized bool             // the length has changed since
	pages map[int64][]byte // old content without zeros at its end
}

// change is one of the namespace.
type change struct {
	dirs []string // folders, any of which makes it durable when synced
	undo func() error
	drop func() // frees what undo needs
}

func newJournal(back, trash string) *journal {
	return &journal{back: back, trash: trash, files: make(map[uint64]*unsynced)}
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forgetNames(len(j.names))
	for _, u := range j.files {
		_ = u.f.Close()
	}
	j.files = nil
}

// of returns the record of a file, begun when there is none. path must name the
// file; fd may be any descriptor of it.
func (j *journal) of(fd int) (*unsynced, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if u := j.files[st.Ino]; u != nil {
		return u, nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	u := &unsynced{f: f, size: st.Size, pages: make(map[int64][]byte)}
	j.files[st.Ino] = u
	return u, nil
}

// keep saves the pages of [off, off+n) that are not saved yet.
func (u *unsynced) keep(off, n int64) error {
	for p := off / pageSize; p*pageSize < off+n; p++ {
		if _, ok := u.pages[p]; ok {
			continue
		}
		// Most were zero: files are made longer before they are written.
		var buf [pageSize]byte
		k, err := u.f.ReadAt(buf[:], p*pageSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		u.pages[p] = bytes.Clone(bytes.TrimRight(buf[:k], "\x00"))
	}
	return nil
}

func (u *unsynced) resized() { u.sized = true }

// synced: all of the file is durable.
func (j *journal) synced(fd int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	if u := j.files[st.Ino]; u != nil {
		delete(j.files, st.Ino)
		return u.f.Close()
	}
	return nil
}

func (j *journal) changed(c change) { j.names = append(j.names, c) }

// forgetNames makes the first n changes durable.
func (j *journal) forgetNames(n int) {
	for _, c := range j.names[:n] {
		if c.drop != nil {
			c.drop()
		}
	}
	j.names = append(j.names[:0:0], j.names[n:]...)
}

// dirSynced makes a folder's changes durable, or with all every one.
func (j *journal) dirSynced(dir string, all bool) {
	if all {
		j.forgetNames(len(j.names))
		return
	}
	var left []change
	for _, c := range j.names {
		mine := false
		for _, d := range c.dirs {
			mine = mine || d == dir
		}
		if !mine {
			left = append(left, c)
		} else if c.drop != nil {
			c.drop()
		}
	}
	j.names = left
}

// bin moves or links a file where it can be found again, and returns where.
func (j *journal) bin(path string) (string, error) {
	j.next++
	at := filepath.Join(j.trash, fmt.Sprint(j.next))
	return at, os.Link(path, at)
}

// undo loses a part of what was not synced and forgets the rest. Nobody may use
// the folder meanwhile.
func (j *journal) undo(rng *rand.Rand, strict bool) (Loss, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var loss Loss
	var errs []error
	for _, u := range j.files {
		errs = append(errs, u.undo(rng, &loss), u.f.Close())
	}
	j.files = make(map[uint64]*unsynced)

	// Those kept are a prefix: of all changes, or of each folder's.
	undone := make([]bool, len(j.names))
	if strict {
		keep := map[string]int{}
		count := map[string]int{}
		for _, c := range j.names {
			count[c.dirs[0]]++
		}
		for i, c := range j.names {
			d := c.dirs[0]
			if _, ok := keep[d]; !ok {
				keep[d] = rng.IntN(count[d] + 1)
			}
			undone[i] = keep[d] <= 0
			keep[d]--
		}
	} else if n := len(j.names); n > 0 {
		for i := rng.IntN(n + 1); i < n; i++ {
			undone[i] = true
		}
	}
	for i := len(j.names) - 1; i >= 0; i-- {
		if undone[i] {
			loss.Names++
			if err := j.names[i].undo(); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	j.forgetNames(len(j.names))
	return loss, errors.Join(errs...)
}

// undo takes back a part of a file's unsynced content.
func (u *unsynced) undo(rng *rand.Rand, loss *Loss) error {
	var errs []error
	st, err := u.f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	loss.Unsynced += len(u.pages)
	fate := rng.IntN(3) // all lost, all there, or each page by itself
	for p := int64(0); p*pageSize < max(size, u.size); p++ {
		old, ok := u.pages[p]
		if !ok {
			continue
		}
		lost := pageSize // leading bytes that keep their old content
		switch {
		case fate == 1:
			continue
		case fate == 2 && rng.IntN(2) == 0:
			continue
		case fate == 2 && rng.IntN(4) == 0:
			lost = sector * (1 + rng.IntN(pageSize/sector-1))
			loss.Torn++
		default:
			loss.Pages++
		}
		buf := make([]byte, pageSize) // what was never written is zero
		copy(buf, old)
		from := 0
		if rng.IntN(2) == 0 { // the end is old rather than the beginning
			from = pageSize - lost
		}
		_, err := u.f.WriteAt(buf[from:from+lost], p*pageSize+int64(from))
		if !errors.Is(err, syscall.ENOSPC) { // a hole of a full disk stays one
			errs = append(errs, err)
		}
	}
	// What was written above may have made the file longer.
	want := size
	if u.sized && fate != 1 && (fate == 0 || rng.IntN(2) == 0) {
		want = u.size
		loss.Lengths++
	}
	return errors.Join(append(errs, u.f.Truncate(want))...)
}
