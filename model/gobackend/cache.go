package gobackend

import (
	"sync"

	"github.com/skein-rl/skein/model/internal/f32"
)

// slotCache is the key/value cache of one sequence. Keys lie in the panels of a
// B operand [D, positions], so that scores are one product against the cache;
// values lie as rows [position, D padded], also a B operand.
type slotCache struct {
	len int
	k   []float32 // [layer][kvHead][maxLen/32][D][32]
	v   []float32 // [layer][kvHead][maxLen][D padded]
}

// cacheShape locates a head's keys and values inside a slotCache.
type cacheShape struct {
	dims
	capacity int // positions, a multiple of f32.PanelWidth
}

func (s cacheShape) newSlot() *slotCache {
	heads := s.layers * s.kvHeads * s.capacity
	return &slotCache{k: make([]float32, heads*s.headDim), v: make([]float32, heads*s.hdPad)}
}

func (s cacheShape) keys(c *slotCache, layer, head int) []float32 {
	n := s.capacity * s.headDim
	at := (layer*s.kvHeads + head) * n
	return c.k[at : at+n]
}

func (s cacheShape) values(c *slotCache, layer, head int) []float32 {
	n := s.capacity * s.hdPad
	at := (layer*s.kvHeads + head) * n
	return c.v[at : at+n]
}

// store writes the key and value [D] of one position.
func (d dims) store(keys, values []float32, pos int, k, v []float32) {
	panel := keys[(pos/f32.PanelWidth)*d.headDim*f32.PanelWidth+pos%f32.PanelWidth:]
	for i, x := range k[:d.headDim] {
		panel[i*f32.PanelWidth] = x
	}
	copy(values[pos*d.hdPad:pos*d.hdPad+d.headDim], v)
}

// copyPrefix copies the first n positions of every head from src.
func (s cacheShape) copyPrefix(dst, src *slotCache, n int) {
	kLen, vLen := f32.Pad(n)*s.headDim, n*s.hdPad
	for l := range s.layers {
		for h := range s.kvHeads {
			copy(s.keys(dst, l, h)[:kLen], s.keys(src, l, h))
			copy(s.values(dst, l, h)[:vLen], s.values(src, l, h))
		}
	}
	dst.len = n
}

// span is a run of consecutive rows of a batch that belong to one slot; the
// first stands at position pos.
type span struct {
	cache *slotCache
	row   int
	rows  int
	pos   int
}

// scratch hands out score buffers to attention tasks.
var scratch = sync.Pool{New: func() any { return new([]float32) }}

// kvBuffers hands out training attention's buffers.
var kvBuffers = sync.Pool{New: func() any { return new(headKV) }}

const queryBlock = 48 // query rows per attention task

// attendCache stores the new keys and values of every span and computes its
// attention: a.qkv -> a.att. Window is the layer's, 0 = all positions.
func (s cacheShape) attendCache(ex *exec, layer, window int, a *acts, spans []span) {
	ex.pool.For(len(spans), func(i int) {
		sp := spans[i]
		for h := range s.kvHeads {
			keys, values := s.keys(sp.cache, layer, h), s.values(sp.cache, layer, h)
			for r := range sp.rows {
				row := a.qkv[(sp.row+r)*s.qkv:]
				s.store(keys, values, sp.pos+r, row[s.q+h*s.headDim:], row[s.q+s.kv+h*s.headDim:])
			}
		}
	})
	type task struct{ span, head, lo, hi int }
	var tasks []task
	for i, sp := range spans {
		for h := range s.kvHeads {
			for lo := 0; lo < sp.rows; lo += queryBlock {
				tasks = append(tasks, task{i, h, lo, min(sp.rows, lo+queryBlock)})
			}
		}
	}
	ex.pool.For(len(tasks), func(i int) {
		t := tasks[i]
		sp := spans[t.span]
		keys := f32.Packed(s.keys(sp.cache, layer, t.head), s.headDim)
		values := f32.B{Data: s.values(sp.cache, layer, t.head), PanelStride: f32.PanelWidth, RowStride: s.hdPad}
		buf := scratch.Get().(*[]float32)
		first, rows := sp.row+t.lo, t.hi-t.lo
		if rows == 1 {
			// One token: the query heads of the group are the rows.
			at := t.head * s.group * s.headDim
			s.attend(buf, a.qkv[first*s.qkv+at:], s.headDim, keys, values, s.group, sp.pos+t.lo, 0, window, a.att[first*s.q+at:], s.headDim, nil)
		} else {
			for g := range s.group {
				at := (t.head*s.group + g) * s.headDim
				s.attend(buf, a.qkv[first*s.qkv+at:], s.qkv, keys, values, rows, sp.pos+t.lo, 1, window, a.att[first*s.q+at:], s.q, nil)
			}
		}
		scratch.Put(buf)
	})
}

// attend computes causal attention (Vaswani et al. 2017, arXiv:1706.03762,
// equation 1) of `rows` queries of one head. Query i stands at position
// pos+i*step and sees the last `window` positions up to its own (0 = all of
// them). Unless nil, lse receives the log-sum-exp of query i's scores at index
// i*heads.
//
// Only whole panels of keys before every window are left out. What else is
// masked enters the product with the values as zeros, which change no bit of
// the sum: a query's result depends neither on the block it is in nor on where
// the block starts.
func (d dims) attend(buf *[]float32, q []float32, ldq int, keys, values f32.B, rows, pos, step, window int, out []float32, ldo int, lse []float32) {
	if rows > queryBlock {
		panic("gobackend: attention block has too many rows")
	}
	first := firstPanel(pos, window)
	keys.Data, values.Data = keys.Data[first*d.headDim:], values.Data[first*d.hdPad:]
	seen := pos + (rows-1)*step + 1 - first // positions from first to the last query
	ld := f32.Pad(seen)
	*buf = resize(*buf, rows*ld)
	p := *buf
	f32.Gemm(nil, rows, ld, d.headDim, f32.A{Data: q, RowStride: ldq, ColStride: 1}, keys, p, ld, false)
	var inv [queryBlock]float32
	for i := range rows {
		at := pos + i*step
		lo, n := firstSeen(at, window)-first, at+1-first
		row := p[i*ld : i*ld+seen]
		top, sum := d.softmaxTerms(row[lo:n])
		if lse != nil {
			lse[i*d.heads] = logSumExp(top, sum)
		}
		clear(row[:lo])
		clear(row[n:])
		inv[i] = 1 / sum
	}
	f32.Gemm(nil, rows, d.headDim, seen, f32.A{Data: p, RowStride: ld, ColStride: 1}, values, out, ldo, false)
	for i := range rows {
		f32.Scale(out[i*ldo:i*ldo+d.headDim], inv[i])
	}
}

// firstSeen is the first position that a query sees; window 0 = all.
func firstSeen(pos, window int) int {
	if window == 0 {
		return 0
	}
	return max(0, pos-window+1)
}

// firstPanel is firstSeen rounded down to a panel of keys.
func firstPanel(pos, window int) int {
	first := firstSeen(pos, window)
	return first - first%f32.PanelWidth
}

// softmaxTerms turns products q.k into scores s (scaled, soft-capped) and
// replaces them by exp(s - max s). It returns max s and the sum of the terms.
func (d dims) softmaxTerms(row []float32) (top, sum float32) {
	scale := d.scale
	if d.attnCap > 0 {
		softcap(row, scale, d.attnCap)
		scale = 1
	}
	top = f32.Max(row) * scale
	f32.Exp(row, scale, -top)
	return top, f32.Sum(row)
}
