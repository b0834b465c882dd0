package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/skein-rl/skein/replay/internal/disk"
)

// commitLoop is the one writer: it gathers the appends that wait, writes them
// behind each other and gives them one fsync.
func (l *Log) commitLoop() {
	defer close(l.done)
	for {
		select {
		case r := <-l.reqs:
			l.commit(l.gather(r))
		case <-l.quit:
			for {
				select {
				case r := <-l.reqs:
					l.commit(l.gather(r))
				default:
					return
				}
			}
		}
	}
}

func (l *Log) gather(first *request) []*request {
	batch, size := []*request{first}, first.size
	for len(batch) < maxBatch && size < maxBatchBytes {
		select {
		case r := <-l.reqs:
			batch, size = append(batch, r), size+r.size
		default:
			return batch
		}
	}
	return batch
}

// commit makes a batch durable and answers its appenders.
func (l *Log) commit(batch []*request) {
	seal := slices.ContainsFunc(batch, func(r *request) bool { return r.seal })
	err := l.write(batch)
	if err == nil && seal && l.size > fileHeader {
		err = disk.Full(l.roll())
	}
	if err != nil {
		err = fmt.Errorf("segment: append: %w", err)
	}
	for _, r := range batch {
		r.done <- err
	}
}

func (l *Log) write(batch []*request) error {
	total := 0
	var parts [][]byte
	for _, r := range batch {
		total += r.size
		parts = append(parts, r.parts...)
	}
	if total == 0 {
		return nil
	}
	if l.opts.MinFree > 0 {
		if err := disk.Check(l.dir, l.opts.FreeSpace, l.opts.MinFree, total); err != nil {
			l.refused.Add(uint64(len(batch)))
			return err
		}
	}
	if l.broken || l.size > fileHeader && l.size+int64(total) > l.opts.MaxBytes {
		if err := l.roll(); err != nil {
			return disk.Full(err)
		}
	}
	if err := disk.WriteAt(l.f, parts, l.size); err != nil {
		// Part of it may be there. Cut it off, or leave the file behind.
		if terr := l.f.Truncate(l.size); terr != nil {
			l.abandon(terr)
		}
		return disk.Full(err)
	}
	if err := l.sync(l.f); err != nil {
		// The batch was refused and must not come back: cut it off.
		l.abandon(errors.Join(err, l.f.Truncate(l.size)))
		return disk.Full(err)
	}
	l.place(batch)
	l.size += int64(total)
	l.bytes.Add(uint64(total))
	l.syncs.Add(1)
	return nil
}

// place turns relative offsets into positions and reports the entries.
func (l *Log) place(batch []*request) {
	var all []Entry
	off := l.size
	for _, r := range batch {
		for i := range r.entries {
			r.entries[i].Pos = Position{l.number, off + r.entries[i].Pos.Offset}
		}
		off += int64(r.size)
		l.records.Add(uint64(len(r.entries)))
		all = append(all, r.entries...)
	}
	if l.opts.OnDurable != nil {
		l.opts.OnDurable(all)
	}
}

// abandon marks the file: after a failed fsync the kernel may have forgotten
// dirty pages, so a second fsync that succeeds would prove nothing.
func (l *Log) abandon(err error) {
	l.broken = true
	l.opts.Logger.Error("segment left behind after a failed write", "file", l.path(l.number), "err", err)
}

func (l *Log) roll() error {
	old := l.f
	err := l.begin(l.number + 1)
	for n := l.number + 2; errors.Is(err, fs.ErrExist); n++ { // what an earlier try could not take away
		err = l.begin(n)
	}
	if err != nil {
		return err
	}
	return old.Close()
}
