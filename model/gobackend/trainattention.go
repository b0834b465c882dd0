package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

// Attention of packed prefix groups. Each (part of a group, key/value head) is one
// task. It walks the trees of sequences depth first: keys and values of a sequence are
// stored behind those of what it goes on from, over those of its last sibling. A
// position of the buffers hence holds what the current sequence sees there, and
// the forward pass is the decoder's, bit for bit.

// headKV are the keys and values of one key/value head of one sequence, in the
// forms the products of both passes want.
type headKV struct {
	keys   []float32 // panels [cap/32][D][32], B operand [D, positions]
	values []float32 // rows [cap][D padded], B operand [positions, D]
	// backward only
	keyRows    []float32 // rows [cap][D padded]
	valPanels  []float32 // panels like keys
	dKeys      []float32 // rows [cap][D padded]
	dValues    []float32
	p, dp      []float32 // [queryBlock, cap] probabilities, their gradient
	slope      []float32 // [cap] derivatives of the soft cap
	qRows, dos []float32 // rows [queryBlock][D padded]
}

// zeroed returns n zeros, reusing s.
func zeroed(s []float32, n int) []float32 {
	s = resize(s, n)
	clear(s)
	return s
}

func (kv *headKV) reset(d dims, capacity int, backward bool) {
	c := f32.Pad(capacity)
	kv.keys, kv.values = zeroed(kv.keys, c*d.headDim), zeroed(kv.values, c*d.hdPad)
	if backward {
		kv.keyRows, kv.valPanels = zeroed(kv.keyRows, c*d.hdPad), zeroed(kv.valPanels, c*d.headDim)
		kv.dKeys, kv.dValues = zeroed(kv.dKeys, c*d.hdPad), zeroed(kv.dValues, c*d.hdPad)
		kv.qRows, kv.dos = zeroed(kv.qRows, queryBlock*d.hdPad), zeroed(kv.dos, queryBlock*d.hdPad)
	}
}

// load stores rows of qkv as positions from pos on.
func (kv *headKV) load(d dims, head int, qkv []float32, r run, pos int, backward bool) {
	for i := range r.n {
		row := qkv[(r.row+i)*d.qkv:]
		k, v := row[d.q+head*d.headDim:], row[d.q+d.kv+head*d.headDim:]
		d.store(kv.keys, kv.values, pos+i, k, v)
		if backward {
			d.store(kv.valPanels, kv.keyRows, pos+i, v, k)
		}
	}
}

// attendGroups computes a.qkv -> a.att and a.lse for a packed batch.
func (d dims) attendGroups(ex *exec, b *batch, window int, a *acts) {
	a.lse = resize(a.lse, len(b.tokens)*d.heads)
	parts := b.parts()
	ex.pool.For(len(parts)*d.kvHeads, func(t int) {
		p, head := parts[t/d.kvHeads], t%d.kvHeads
		kv := kvBuffers.Get().(*headKV)
		defer kvBuffers.Put(kv)
		kv.reset(d, p.longest(), false)
		for i, s := range p.sequences() {
			kv.load(d, head, a.qkv, s.run, s.pos, false)
			if i > 0 || p.first {
				d.attendRun(kv, head, s, window, a)
			}
		}
	})
}

// groupPart is consecutive members of a group, whole trees, and what they go on
// from: the prompt, whose own queries are the first part's.
type groupPart struct {
	packedGroup
	first bool
	of    int // parts of the group
}

// A part has at least so many rows besides the prompt, and a group at most so many
// parts: each stores the prompt's keys and values again.
const (
	partRows = 2 * queryBlock
	maxParts = 8
)

// parts cuts the groups for as many tasks as are worth it, the same whatever the
// number of threads.
func (b *batch) parts() (out []groupPart) {
	for _, g := range b.groups {
		total := 0
		for _, m := range g.members {
			total += m.n
		}
		size, rows, begin := max(partRows, (total+maxParts-1)/maxParts), 0, 0
		var cut []groupPart
		for i, m := range g.members {
			if m.pos == g.prompt && rows >= size {
				cut = append(cut, groupPart{packedGroup: packedGroup{g.row, g.prompt, g.members[begin:i]}})
				begin, rows = i, 0
			}
			rows += m.n
		}
		cut = append(cut, groupPart{packedGroup: packedGroup{g.row, g.prompt, g.members[begin:]}})
		for i := range cut {
			cut[i].first, cut[i].of = i == 0, len(cut)
		}
		out = append(out, cut...)
	}
	return out
}

// sequences lists the prompt, then the members with rows, depth first.
func (g packedGroup) sequences() []sequence {
	out := []sequence{{run{g.row, g.prompt}, 0}}
	for _, m := range g.members {
		if m.n > 0 {
			out = append(out, m)
		}
	}
	return out
}

func (d dims) attendRun(kv *headKV, head int, s sequence, window int, a *acts) {
	pages := d.flatHead(kv.keys, kv.values)
	for lo := 0; lo < s.n; lo += queryBlock {
		rows, first := min(queryBlock, s.n-lo), s.row+lo
		for h := head * d.group; h < (head+1)*d.group; h++ {
			at := h * d.headDim
			d.attend(&kv.p, a.qkv[first*d.qkv+at:], d.qkv, pages, rows, s.pos+lo, window,
				a.att[first*d.q+at:], d.q, a.lse[first*d.heads+h:])
		}
	}
}

// attendGroupsBackward computes dqkv [N, Q+2KV] from the gradient datt [N, Q].
// With P the probabilities, O the output and s the score scale:
//
//	dP = dO V^T,  dS = s P (dP - rowsum(dO O)),  dQ = dS K,  dK = dS^T Q,  dV = P^T dO
//
// where a soft cap multiplies dS by its slope.
func (d dims) attendGroupsBackward(bs *backwardScratch, b *batch, window int, a *acts, datt, dqkv []float32) {
	parts := b.parts()
	at := make([]int, len(parts)+1) // where the prompt's gradients of a part lie in bs.prompts
	for i, p := range parts {
		at[i+1] = at[i]
		if p.of > 1 {
			at[i+1] += p.prompt * 2 * d.kv
		}
	}
	bs.prompts = resize(bs.prompts, at[len(parts)])
	bs.pool.For(len(parts)*d.kvHeads, func(t int) {
		p, head := parts[t/d.kvHeads], t%d.kvHeads
		kv := kvBuffers.Get().(*headKV)
		defer kvBuffers.Put(kv)
		kv.reset(d, p.longest(), true)
		var path []sequence // their keys and values still collect gradients
		leave := func(pos int) {
			for n := len(path); n > 0 && path[n-1].pos+path[n-1].n > pos; n-- {
				if n > 1 || p.of == 1 {
					kv.flush(d, head, path[n-1], dqkv[d.q:], d.qkv)
				} else { // added up below
					kv.flush(d, head, sequence{run: run{0, p.prompt}}, bs.prompts[at[t/d.kvHeads]:], 2*d.kv)
				}
				path = path[:n-1]
			}
		}
		for i, s := range p.sequences() {
			leave(s.pos)
			kv.load(d, head, a.qkv, s.run, s.pos, true)
			if i > 0 || p.first {
				d.attendRunBackward(kv, head, s, window, a, datt, dqkv)
			}
			path = append(path, s)
		}
		leave(0)
	})
	for i, p := range parts {
		if p.of == 1 {
			continue
		}
		bs.pool.Rows(p.prompt, rowGrain(2*d.kv), func(lo, hi int) {
			for r := lo; r < hi; r++ {
				from, to := bs.prompts[at[i]+r*2*d.kv:][:2*d.kv], dqkv[(p.row+r)*d.qkv+d.q:][:2*d.kv]
				if p.first {
					copy(to, from)
				} else {
					f32.Add(to, from)
				}
			}
		})
	}
}

// flush moves the key and value gradients of a run into rows of dkv, which begin
// with all heads' keys, and clears them.
func (kv *headKV) flush(d dims, head int, s sequence, dkv []float32, stride int) {
	for i := range s.n {
		row := dkv[(s.row+i)*stride:]
		at := (s.pos + i) * d.hdPad
		copy(row[head*d.headDim:(head+1)*d.headDim], kv.dKeys[at:])
		copy(row[d.kv+head*d.headDim:d.kv+(head+1)*d.headDim], kv.dValues[at:])
		clear(kv.dKeys[at : at+d.hdPad])
		clear(kv.dValues[at : at+d.hdPad])
	}
}

func (d dims) attendRunBackward(kv *headKV, head int, s sequence, window int, a *acts, datt, dqkv []float32) {
	rowsB := func(data []float32) f32.B {
		return f32.B{Data: data, PanelStride: f32.PanelWidth, RowStride: d.hdPad}
	}
	for lo := 0; lo < s.n; lo += queryBlock {
		rows, first, pos := min(queryBlock, s.n-lo), s.row+lo, s.pos+lo
		from := firstPanel(pos, window)
		seen := pos + rows - from // positions from `from` to the last query
		ld := f32.Pad(seen)
		kv.p, kv.dp = resize(kv.p, rows*ld), resize(kv.dp, rows*ld)
		keys, vals := f32.Packed(kv.keys[from*d.headDim:], d.headDim), f32.Packed(kv.valPanels[from*d.headDim:], d.headDim)
		for h := head * d.group; h < (head+1)*d.group; h++ {
			at := h * d.headDim
			q, do, out := a.qkv[first*d.qkv+at:], datt[first*d.q+at:], a.att[first*d.q+at:]
			f32.Gemm(nil, rows, ld, d.headDim, f32.A{Data: q, RowStride: d.qkv, ColStride: 1}, keys, kv.p, ld, false)
			f32.Gemm(nil, rows, ld, d.headDim, f32.A{Data: do, RowStride: d.q, ColStride: 1}, vals, kv.dp, ld, false)
			for i := range rows {
				begin, end := firstSeen(pos+i, window)-from, pos+i+1-from
				p, dp := kv.p[i*ld:i*ld+seen], kv.dp[i*ld:i*ld+seen]
				doRow := do[i*d.q : i*d.q+d.headDim]
				delta := f32.Dot(doRow, out[i*d.q:i*d.q+d.headDim])
				kv.scoreGradient(d, p[begin:end], dp[begin:end], a.lse[(first+i)*d.heads+h], delta)
				for _, row := range [][]float32{p, dp} {
					clear(row[:begin])
					clear(row[end:])
				}
				copy(kv.qRows[i*d.hdPad:], q[i*d.qkv:i*d.qkv+d.headDim])
				copy(kv.dos[i*d.hdPad:], doRow)
			}
			f32.Gemm(nil, rows, d.headDim, seen, f32.A{Data: kv.dp, RowStride: ld, ColStride: 1}, rowsB(kv.keyRows[from*d.hdPad:]), dqkv[first*d.qkv+at:], d.qkv, false)
			f32.Gemm(nil, seen, d.headDim, rows, f32.A{Data: kv.dp, RowStride: 1, ColStride: ld}, rowsB(kv.qRows), kv.dKeys[from*d.hdPad:], d.hdPad, true)
			f32.Gemm(nil, seen, d.headDim, rows, f32.A{Data: kv.p, RowStride: 1, ColStride: ld}, rowsB(kv.dos), kv.dValues[from*d.hdPad:], d.hdPad, true)
		}
	}
}

// scoreGradient turns products q.k into probabilities (p) and the gradient of
// the probabilities into that of the products (dp).
func (kv *headKV) scoreGradient(d dims, p, dp []float32, lse, delta float32) {
	if d.attnCap == 0 {
		f32.Exp(p, d.scale, -lse)
		for j, v := range p {
			dp[j] = d.scale * v * (dp[j] - delta)
		}
		return
	}
	softcap(p, d.scale, d.attnCap)
	kv.slope = append(kv.slope[:0], p...)
	f32.Exp(p, 1, -lse)
	for j, v := range p {
		dp[j] = d.scale * softcapSlope(kv.slope[j], d.attnCap) * v * (dp[j] - delta)
	}
}
