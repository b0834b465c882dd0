package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

const queryBlock = 48 // query rows per attention task

// attendCache stores the new keys and values of every span and computes its
// attention: a.qkv -> a.att. Window is the layer's, 0 = all positions. Spans of
// one row are decoded in clusters, whose common pages are read once.
func (s cacheShape) attendCache(ex *exec, layer, window int, a *acts, spans []span, clusters []cluster) {
	type task struct{ span, head, lo, hi int }
	var tasks []task // of spans of several rows
	for i, sp := range spans {
		if sp.rows == 1 {
			continue
		}
		for h := range s.kvHeads {
			for lo := 0; lo < sp.rows; lo += queryBlock {
				tasks = append(tasks, task{i, h, lo, min(sp.rows, lo+queryBlock)})
			}
		}
	}
	if len(tasks) > 0 {
		ex.pool.For(len(spans)*s.kvHeads, func(i int) {
			if sp := spans[i/s.kvHeads]; sp.rows > 1 {
				s.storeSpan(layer, i%s.kvHeads, a, sp)
			}
		})
	}
	ex.pool.For(len(tasks)+len(clusters)*s.kvHeads, func(i int) {
		buf := scratch.Get().(*[]float32)
		defer scratch.Put(buf)
		if i >= len(tasks) {
			i -= len(tasks)
			s.attendCluster(buf, layer, i%s.kvHeads, window, a, spans, clusters[i/s.kvHeads])
			return
		}
		t := tasks[i]
		sp := spans[t.span]
		kv := s.head(sp.cache, layer, t.head)
		first, rows := sp.row+t.lo, t.hi-t.lo
		for g := range s.group {
			at := (t.head*s.group + g) * s.headDim
			s.attend(buf, a.qkv[first*s.qkv+at:], s.qkv, kv, rows, sp.pos+t.lo, window, a.att[first*s.q+at:], s.q, nil)
		}
	})
}

// storeSpan stores a span's keys and values of one head.
func (s cacheShape) storeSpan(layer, head int, a *acts, sp span) {
	kv := s.head(sp.cache, layer, head)
	for r := range sp.rows {
		row, pos := a.qkv[(sp.row+r)*s.qkv:], sp.pos+r
		keys, values := kv.page(pos / pageLen)
		s.store(keys, values, pos%pageLen, row[s.q+head*s.headDim:], row[s.q+s.kv+head*s.headDim:])
	}
}

// cluster is consecutive spans [lo, hi) of one row each whose slots share their
// first `common` pages.
type cluster struct{ lo, hi, common int }

// clusterRows is the number of query rows that a cluster is filled up to: the
// height of a micro-kernel.
const clusterRows = 12

// clusters groups the spans of one row.
func (d dims) clusters(out []cluster, spans []span) []cluster {
	for i, sp := range spans {
		if sp.rows != 1 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].hi == i && (i+1-out[n-1].lo)*d.group <= clusterRows {
			c := &out[n-1]
			common := commonPages(spans[c.lo].cache.pages, sp.cache.pages)
			if c.hi-c.lo > 1 {
				common = min(common, c.common)
			}
			if common > 0 {
				c.hi, c.common = i+1, common
				continue
			}
		}
		out = append(out, cluster{i, i + 1, 0})
	}
	return out
}

func commonPages(a, b []*page) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// attendCluster is attend for the spans of a cluster: the query heads of a group
// of every span are rows side by side, in products with the common pages
// together and with a span's own pages alone. Each query's sums run over its
// positions in order, as in attend: the bits are the same.
func (s cacheShape) attendCluster(buf *[]float32, layer, head, window int, a *acts, spans []span, c cluster) {
	spans = spans[c.lo:c.hi]
	first, seen := spans[0].pos, 0
	for _, sp := range spans {
		s.storeSpan(layer, head, a, sp)
		first, seen = min(first, firstPanel(sp.pos, window)), max(seen, sp.pos+1)
	}
	m, d, ld := len(spans)*s.group, s.headDim, f32.Pad(seen-first)
	*buf = resize(*buf, m*(ld+2*d+1))
	p, q, out, inv := (*buf)[:m*ld], (*buf)[m*ld:m*(ld+d)], (*buf)[m*(ld+d):m*(ld+2*d)], (*buf)[m*(ld+2*d):]
	at := head * s.group * d
	for i, sp := range spans {
		copy(q[i*s.group*d:(i+1)*s.group*d], a.qkv[sp.row*s.qkv+at:])
	}
	common := max(first, c.common*pageLen)
	s.scores(p, ld, q, d, s.head(spans[0].cache, layer, head), m, first, first, common)
	for i, sp := range spans {
		kv, r := s.head(sp.cache, layer, head), i*s.group
		s.scores(p[r*ld:], ld, q[r*d:], d, kv, s.group, first, common, sp.pos+1)
		lo := firstSeen(sp.pos, window) - first
		for g := r; g < r+s.group; g++ {
			row := p[g*ld : (g+1)*ld]
			_, sum := s.softmaxTerms(row[lo : sp.pos+1-first])
			clear(row[:lo])
			inv[g] = 1 / sum
		}
	}
	s.mix(out, d, p, ld, s.head(spans[0].cache, layer, head), m, first, first, common)
	for i, sp := range spans {
		r := i * s.group
		s.mix(out[r*d:], d, p[r*ld:], ld, s.head(sp.cache, layer, head), s.group, first, common, sp.pos+1)
		for g := r; g < r+s.group; g++ {
			f32.Scale(out[g*d:(g+1)*d], inv[g])
		}
		copy(a.att[sp.row*s.q+at:], out[r*d:(r+s.group)*d])
	}
}

// scores writes q.k of positions [from, to), which start a page, into columns
// from-first on of p [rows, ld], whole pages at a time.
func (d dims) scores(p []float32, ld int, q []float32, ldq int, kv headPages, rows, first, from, to int) {
	for ; from < to; from += pageLen {
		keys, _ := kv.page(from / pageLen)
		f32.Gemm(nil, rows, pageLen, d.headDim, f32.A{Data: q, RowStride: ldq, ColStride: 1}, f32.Packed(keys, d.headDim), p[from-first:], ld, false)
	}
}

// mix adds the values of positions [from, to), weighted by p, to out [rows, D];
// at first it starts anew.
func (d dims) mix(out []float32, ldo int, p []float32, ld int, kv headPages, rows, first, from, to int) {
	for ; from < to; from += pageLen {
		_, values := kv.page(from / pageLen)
		f32.Gemm(nil, rows, d.headDim, min(pageLen, to-from), f32.A{Data: p[from-first:], RowStride: ld, ColStride: 1},
			f32.B{Data: values, PanelStride: f32.PanelWidth, RowStride: d.hdPad}, out, ldo, from > first)
	}
}

// attend computes causal attention (Vaswani et al. 2017, arXiv:1706.03762,
// equation 1) of `rows` queries of one head. Query i stands at position pos+i
// and sees the last `window` positions up to its own (0 = all of them). Unless nil, lse receives the log-sum-exp of query i's scores at index
// i*heads.
//
// Only whole panels of keys before every window are left out. What else is
// masked enters the product with the values as zeros, which change no bit of
// the sum: a query's result depends neither on the block it is in nor on where
// the block starts.
func (d dims) attend(buf *[]float32, q []float32, ldq int, kv headPages, rows, pos, window int, out []float32, ldo int, lse []float32) {
	if rows > queryBlock {
		panic("gobackend: attention block has too many rows")
	}
	first := firstPanel(pos, window)
	seen := pos + rows - first // positions from first to the last query
	ld := f32.Pad(seen)
	*buf = resize(*buf, rows*ld)
	p := *buf
	d.scores(p, ld, q, ldq, kv, rows, first, first, first+seen)
	var inv [queryBlock]float32
	for i := range rows {
		at := pos + i
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
	d.mix(out, ldo, p, ld, kv, rows, first, first, first+seen)
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
