package gobackend

import (
	"sync"
	"sync/atomic"

	"github.com/skein-rl/skein/model/internal/f32"
)

// slotCache is the key/value cache of one sequence: pages of consecutive
// positions. Slots that were copied from one another share pages, so that a
// group's prompt is stored once; a shared page is copied before it is written.
type slotCache struct {
	len   int
	pages []*page // at least enough for len positions
}

// pageLen is the number of positions in a page: a panel of keys.
const pageLen = f32.PanelWidth

// page holds the keys and values of pageLen positions. Keys lie in the panel of
// a B operand [D, positions], so that scores are a product against the cache;
// values lie as rows [position, D padded], also a B operand.
type page struct {
	slots atomic.Int32 // that hold the page
	// k and v last as long as the decoder's freePages.
	k []float32 // [layer][kvHead][D][pageLen]
	v []float32 // [layer][kvHead][pageLen][D padded]
}

// cacheShape makes pages and locates a head inside them.
type cacheShape struct {
	dims
	free *freePages
}

// freePages are pages that no slot holds any more, and where new ones lie:
// outside Go's heap, see f32.Memory. A lane of a small model takes and leaves
// pages beside others.
type freePages struct {
	mu   sync.Mutex
	list []*page
	mem  *f32.Memory
}

func newCacheShape(d dims) cacheShape { return cacheShape{d, &freePages{mem: f32.NewMemory()}} }

// take returns a page that the caller alone holds; its content is undefined.
func (s cacheShape) take() *page {
	s.free.mu.Lock()
	defer s.free.mu.Unlock()
	var p *page
	if n := len(s.free.list); n > 0 {
		p = s.free.list[n-1]
		s.free.list = s.free.list[:n-1]
	} else {
		heads := s.layers * s.kvHeads * pageLen
		p = &page{k: s.free.mem.Floats(heads * s.headDim), v: s.free.mem.Floats(heads * s.hdPad)}
	}
	p.slots.Store(1)
	return p
}

func (s cacheShape) leave(p *page) {
	if p.slots.Add(-1) == 0 {
		s.free.mu.Lock()
		s.free.list = append(s.free.list, p)
		s.free.mu.Unlock()
	}
}

// truncate forgets positions from n on.
func (s cacheShape) truncate(c *slotCache, n int) {
	c.len = n
	keep := (n + pageLen - 1) / pageLen
	for _, p := range c.pages[keep:] {
		s.leave(p)
	}
	clear(c.pages[keep:])
	c.pages = c.pages[:keep]
}

// share makes dst hold the first n positions of src.
func (s cacheShape) share(dst, src *slotCache, n int) {
	s.truncate(dst, 0)
	for _, p := range src.pages[:(n+pageLen-1)/pageLen] {
		p.slots.Add(1)
		dst.pages = append(dst.pages, p)
	}
	dst.len = n
}

// reserve makes positions [from, to) of c writable.
func (s cacheShape) reserve(c *slotCache, from, to int) {
	for i := from / pageLen; i*pageLen < to; i++ {
		if i == len(c.pages) {
			c.pages = append(c.pages, s.take())
		} else if old := c.pages[i]; old.slots.Load() > 1 {
			own := s.take()
			copy(own.k, old.k)
			copy(own.v, old.v)
			c.pages[i] = own
			s.leave(old)
		}
	}
}

// headPages gives the keys [D, pageLen] and values [pageLen, D padded] of one
// head, page by page: of a slot's pages, or without those of flat buffers whose
// pages lie one after the other.
type headPages struct {
	pages                []*page
	k, kLen              int // where the head's keys lie in a page, and their length
	v, vLen              int
	flatKeys, flatValues []float32
}

func (s cacheShape) head(c *slotCache, layer, head int) headPages {
	at, k, v := layer*s.kvHeads+head, s.headDim*pageLen, s.hdPad*pageLen
	return headPages{pages: c.pages, k: at * k, kLen: k, v: at * v, vLen: v}
}

func (d dims) flatHead(keys, values []float32) headPages {
	return headPages{kLen: d.headDim * pageLen, vLen: d.hdPad * pageLen, flatKeys: keys, flatValues: values}
}

func (h *headPages) page(i int) (keys, values []float32) {
	if h.pages == nil {
		return h.flatKeys[i*h.kLen : (i+1)*h.kLen], h.flatValues[i*h.vLen : (i+1)*h.vLen]
	}
	p := h.pages[i]
	return p.k[h.k : h.k+h.kLen], p.v[h.v : h.v+h.vLen]
}

// store writes the key and value [D] of one position into its page, or into
// pages that lie one after the other.
func (d dims) store(keys, values []float32, pos int, k, v []float32) {
	panel := keys[(pos/pageLen)*d.headDim*pageLen+pos%pageLen:]
	for i, x := range k[:d.headDim] {
		panel[i*pageLen] = x
	}
	copy(values[pos*d.hdPad:pos*d.hdPad+d.headDim], v)
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
