package disk

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or folder. What it does not override passes through.
type node struct {
	fs.LoopbackNode
	d *Disk
}

var (
	_ fs.NodeCreater   = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeRenamer   = (*node)(nil)
	_ fs.NodeUnlinker  = (*node)(nil)
	_ fs.NodeMkdirer   = (*node)(nil)
	_ fs.NodeRmdirer   = (*node)(nil)
	_ fs.NodeLinker    = (*node)(nil)
	_ fs.NodeSymlinker = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)

	_ fs.NodeCopyFileRanger = (*node)(nil)
)

func (n *node) rel() string { return n.Path(n.Root()) }

func (n *node) path(name ...string) string {
	return filepath.Join(append([]string{n.d.back, n.rel()}, name...)...)
}

// change runs an operation on the namespace unless the power is off.
func (n *node) change(op func(j *journal) syscall.Errno) syscall.Errno {
	if e := n.d.enter(); e != 0 {
		return e
	}
	j := n.d.j
	j.mu.Lock()
	defer j.mu.Unlock()
	if n.d.dead.Load() {
		return syscall.EIO
	}
	return op(j)
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (in *fs.Inode, fh fs.FileHandle, _ uint32, errno syscall.Errno) {
	errno = n.change(func(j *journal) syscall.Errno {
		p := n.path(name)
		_, serr := os.Lstat(p)
		// O_TRUNC of a file that exists would lose what undo needs.
		f, err := os.OpenFile(p, int(flags)&^(syscall.O_APPEND|syscall.O_TRUNC)|os.O_CREATE, os.FileMode(mode))
		if err != nil {
			return fs.ToErrno(err)
		}
		if serr == nil && flags&syscall.O_TRUNC != 0 {
			if e := n.d.truncate(int(f.Fd()), 0); e != 0 {
				_ = f.Close()
				return e
			}
		}
		if serr != nil {
			j.changed(change{dirs: []string{n.rel()}, undo: func() error { return os.Remove(p) }})
		}
		var e syscall.Errno
		if in, e = n.Lookup(ctx, name, out); e != 0 {
			_ = f.Close()
			return e
		}
		fh = &file{LoopbackFile: fs.NewLoopbackFileFromOS(f), f: f, d: n.d}
		return 0
	})
	return in, fh, 0, errno
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if n.d.dead.Load() {
		return nil, 0, syscall.EIO
	}
	// Pages are read back by the kernel from files opened for writing too.
	mode := int(flags) &^ (syscall.O_APPEND | fuse.FMODE_EXEC | syscall.O_TRUNC)
	f, err := os.OpenFile(n.path(), mode, 0)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	if flags&syscall.O_TRUNC != 0 {
		e := n.change(func(*journal) syscall.Errno { return n.d.truncate(int(f.Fd()), 0) })
		if e != 0 {
			_ = f.Close()
			return nil, 0, e
		}
	}
	return &file{LoopbackFile: fs.NewLoopbackFileFromOS(f), f: f, d: n.d}, 0, 0
}

// truncate changes a file's length; the journal is locked.
func (d *Disk) truncate(fd int, size int64) syscall.Errno {
	u, err := d.j.of(fd)
	if err != nil {
		return fs.ToErrno(err)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fs.ToErrno(err)
	}
	if size < st.Size {
		if err := u.keep(size, st.Size-size); err != nil {
			return fs.ToErrno(err)
		}
	}
	u.resized()
	return fs.ToErrno(u.f.Truncate(size))
}

func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	size, ok := in.GetSize()
	if !ok {
		return n.LoopbackNode.Setattr(ctx, nil, in, out)
	}
	e := n.change(func(*journal) syscall.Errno {
		if f, ok := fh.(*file); ok {
			return n.d.truncate(int(f.f.Fd()), int64(size))
		}
		f, err := os.OpenFile(n.path(), os.O_RDWR, 0)
		if err != nil {
			return fs.ToErrno(err)
		}
		defer func() { _ = f.Close() }()
		return n.d.truncate(int(f.Fd()), int64(size))
	})
	if e != 0 {
		return e
	}
	return n.Getattr(ctx, nil, out)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.change(func(j *journal) syscall.Errno {
		p := n.path(name)
		at, err := j.bin(p)
		if err != nil {
			return fs.ToErrno(err)
		}
		if e := n.LoopbackNode.Unlink(ctx, name); e != 0 {
			_ = os.Remove(at)
			return e
		}
		j.changed(change{dirs: []string{n.rel()},
			undo: func() error { return os.Rename(at, p) }, drop: func() { _ = os.Remove(at) }})
		return 0
	})
}

func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	t, ok := to.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return n.change(func(j *journal) syscall.Errno {
		from, dest := n.path(name), t.path(newName)
		var old string
		if st, err := os.Lstat(dest); err == nil && !st.IsDir() {
			if old, err = j.bin(dest); err != nil {
				return fs.ToErrno(err)
			}
		}
		if e := n.LoopbackNode.Rename(ctx, name, to, newName, flags); e != 0 {
			if old != "" {
				_ = os.Remove(old)
			}
			return e
		}
		c := change{dirs: []string{t.rel()}, undo: func() error {
			err := os.Rename(dest, from)
			if old != "" && err == nil {
				err = os.Rename(old, dest)
			}
			return err
		}}
		if n.rel() != t.rel() {
			c.dirs = append(c.dirs, n.rel())
		}
		if old != "" {
			c.drop = func() { _ = os.Remove(old) }
		}
		j.changed(c)
		return 0
	})
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (in *fs.Inode, errno syscall.Errno) {
	errno = n.change(func(j *journal) (e syscall.Errno) {
		p := n.path(name)
		if in, e = n.LoopbackNode.Mkdir(ctx, name, mode, out); e == 0 {
			j.changed(change{dirs: []string{n.rel()}, undo: func() error { return os.RemoveAll(p) }})
		}
		return e
	})
	return in, errno
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	return n.change(func(j *journal) syscall.Errno {
		p := n.path(name)
		e := n.LoopbackNode.Rmdir(ctx, name)
		if e == 0 {
			j.changed(change{dirs: []string{n.rel()}, undo: func() error { return os.Mkdir(p, 0o700) }})
		}
		return e
	})
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (in *fs.Inode, errno syscall.Errno) {
	errno = n.change(func(j *journal) (e syscall.Errno) {
		p := n.path(name)
		t, ok := target.(*node)
		if !ok {
			return syscall.EXDEV
		}
		if err := os.Link(t.path(), p); err != nil {
			return fs.ToErrno(err)
		}
		j.changed(change{dirs: []string{n.rel()}, undo: func() error { return os.Remove(p) }})
		in, e = n.Lookup(ctx, name, out)
		return e
	})
	return in, errno
}

// Symlink is not offered: nothing here needs it.
func (n *node) Symlink(context.Context, string, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

// CopyFileRange would pass the journal by; callers copy by hand then.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOTSUP
}

// OpendirHandle hides the Fsyncdir of the loopback's own handle, which would go
// to the folder behind and tell the journal nothing.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, fl, e := n.LoopbackNode.OpendirHandle(ctx, flags)
	if e != 0 {
		return nil, 0, e
	}
	return dirHandle{h.(dirStream), n}, fl, 0
}

type dirStream interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

type dirHandle struct {
	dirStream
	n *node
}

// Fsyncdir implements fs.FileFsyncdirer.
func (h dirHandle) Fsyncdir(context.Context, uint32) syscall.Errno {
	return h.n.change(func(j *journal) syscall.Errno {
		j.dirSynced(h.n.rel(), !h.n.d.strict)
		return 0
	})
}

// Fsync of a file.
func (n *node) Fsync(_ context.Context, fh fs.FileHandle, _ uint32) syscall.Errno {
	return n.change(func(j *journal) syscall.Errno {
		f, ok := fh.(*file)
		if !ok {
			return syscall.EBADF
		}
		if !n.d.strict {
			j.dirSynced("", true)
		}
		return fs.ToErrno(j.synced(int(f.f.Fd())))
	})
}

// file is an open file.
type file struct {
	*fs.LoopbackFile
	f *os.File
	d *Disk
}

// PassthroughFd keeps the kernel from passing the journal by.
func (f *file) PassthroughFd() (int, bool) { return 0, false }

func (f *file) change(op func(u *unsynced) syscall.Errno) syscall.Errno {
	if e := f.d.enter(); e != 0 {
		return e
	}
	f.d.j.mu.Lock()
	defer f.d.j.mu.Unlock()
	if f.d.dead.Load() {
		return syscall.EIO
	}
	u, err := f.d.j.of(int(f.f.Fd()))
	if err != nil {
		return fs.ToErrno(err)
	}
	return op(u)
}

func (f *file) Write(_ context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	errno = f.change(func(u *unsynced) syscall.Errno {
		if err := u.keep(off, int64(len(data))); err != nil {
			return fs.ToErrno(err)
		}
		st, err := u.f.Stat()
		if err != nil {
			return fs.ToErrno(err)
		}
		if off+int64(len(data)) > st.Size() {
			u.resized()
		}
		k, err := u.f.WriteAt(data, off)
		n = uint32(k)
		if k > 0 {
			return 0
		}
		return fs.ToErrno(err)
	})
	return n, errno
}

func (f *file) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	return f.change(func(u *unsynced) syscall.Errno {
		if mode&unix.FALLOC_FL_PUNCH_HOLE != 0 || mode&unix.FALLOC_FL_ZERO_RANGE != 0 {
			return syscall.ENOTSUP
		}
		u.resized()
		return fs.ToErrno(syscall.Fallocate(int(u.f.Fd()), mode, int64(off), int64(size)))
	})
}

func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if f.d.dead.Load() {
		return nil, syscall.EIO
	}
	n, err := f.f.ReadAt(buf, off)
	if n == 0 && err != nil && err.Error() != "EOF" {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(buf[:n]), 0
}
