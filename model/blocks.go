package model

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

const (
	mapWindow  = 64 << 20  // bytes of a file mapped at a time
	readWindow = 4 << 20   // bytes read at a time where it can't be mapped
	chunkElems = 256 << 10 // numbers a core decodes at a time
)

// readBlocks decodes len(dst) numbers stored at byte at of r, on all cores.
// Files are mapped window by window where the system can, so that memory grows
// by the decoded numbers only. done, unless nil, is told of bytes read.
func readBlocks(r io.ReaderAt, at int64, t blockType, dst []float32, done func(n int64)) error {
	w := window{r: r}
	for len(dst) > 0 {
		src, release, err := w.next(at, int64(len(dst)/t.elems)*int64(t.bytes), t.bytes)
		if err != nil {
			return err
		}
		part := dst[:len(src)/t.bytes*t.elems]
		err = decodeParallel(t, part, src)
		release()
		if err != nil {
			return err
		}
		dst, at = dst[len(part):], at+int64(len(src))
		if done != nil {
			done(int64(len(src)))
		}
	}
	return nil
}

// window shows parts of a file in turn.
type window struct {
	r   io.ReaderAt
	buf []byte // where the file can't be mapped
}

// next gives whole blocks from byte at, at most left bytes, valid until
// release.
func (w *window) next(at, left int64, block int) (src []byte, release func(), err error) {
	if f, ok := w.r.(*os.File); ok && w.buf == nil {
		n := min(left, int64(mapWindow/block*block))
		if src, release, err := mapFile(f, at, int(n)); err == nil {
			return src, release, nil
		}
	}
	n := min(left, int64(readWindow/block*block))
	if int64(cap(w.buf)) < n {
		w.buf = make([]byte, n)
	}
	if got, err := w.r.ReadAt(w.buf[:n], at); int64(got) < n {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	return w.buf[:n], func() {}, nil
}

// decodeParallel shares the blocks of src among the cores.
func decodeParallel(t blockType, dst []float32, src []byte) error {
	per := max(chunkElems/t.elems, 1) // blocks of a chunk
	chunks := (len(dst)/t.elems + per - 1) / per
	workers := min(chunks, runtime.GOMAXPROCS(0))
	var next atomic.Int64
	errs := make([]error, workers)
	work := func(w int) {
		// A mapped file that somebody truncates meanwhile faults on access.
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if p := recover(); p != nil {
				if _, fault := p.(interface{ Addr() uintptr }); !fault {
					panic(p)
				}
				errs[w] = fmt.Errorf("the file became shorter while it was read: %w", io.ErrUnexpectedEOF)
			}
		}()
		for {
			first := (int(next.Add(1)) - 1) * per
			if first*t.elems >= len(dst) {
				return
			}
			last := min(first+per, len(dst)/t.elems)
			t.decode(dst[first*t.elems:last*t.elems], src[first*t.bytes:last*t.bytes])
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
