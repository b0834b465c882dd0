//go:build xla

package xla

import "fmt"

// The decoder's programs. Caches are one K and one V per layer, [B, KV, S, D] in
// the compute type, B slots of S positions; each is donated and aliased to the
// matching result, so it is updated in place.

// cacheArgs adds the caches: K then V of each layer.
func cacheArgs(e *emitter, s shape, elem string, slots, size int) []value {
	var c []value
	for l := range s.layers {
		c = append(c,
			e.arg(fmt.Sprintf("k_%d", l), elem, slots, s.kv, size, s.headDim),
			e.arg(fmt.Sprintf("v_%d", l), elem, slots, s.kv, size, s.headDim))
	}
	return c
}

// aliasCaches ties the caches, which start at argument from, to the results
// from result on.
func aliasCaches(e *emitter, s shape, from, result int) {
	for i := range 2 * s.layers {
		e.alias[from+i] = result + i
	}
}

// decodeSpec is everything a decode program is compiled for.
type decodeSpec struct {
	slots, size int // B and S
	steps       int // tokens per call at most
	stops       int // stop ids per row
	// filter adds top-k and top-p. Rows without filters may share the call:
	// theirs are the same sums, grouped differently by the compiler.
	filter bool
}

func (d decodeSpec) String() string {
	s := fmt.Sprintf("%d of %d x %d, %d stops", d.steps, d.slots, d.size, d.stops)
	if d.filter {
		s += ", filters"
	}
	return s
}

// emitDecode makes up to `most` tokens per row in one call. Arguments:
//
//	last [B] i32, pos [B] i32 (where last goes), active [B] i1, limit [B] i32,
//	stop [B,stops] i32 (padded with -1), greedy [B] i1, inv [B] f32 (1/temperature),
//	topK [B] i32, topP [B] f32, u [steps,B] f64 (one uniform per draw), most i32,
//	caches, weights, adapters
//
// Results: ids [steps,B] i32 (-1 where a row was done), logprobs [steps,B] f32,
// caches. Rows that are not active write one position past their length, which
// the caller keeps free; nothing reads it.
func emitDecode(e *emitter, s shape, elem string, lora *loraShape, d decodeSpec) []value {
	b := d.slots
	last, pos, active := e.arg("last", "i32", b), e.arg("pos", "i32", b), e.arg("active", "i1", b)
	limit, stop := e.arg("limit", "i32", b), e.arg("stop", "i32", b, d.stops)
	draw := &sampler{emitter: e, vocab: s.vocab, filter: d.filter}
	draw.greedy, draw.inv = e.arg("greedy", "i1", b), e.arg("inv", "f32", b)
	draw.topK, draw.topP = e.arg("top_k", "i32", b), e.arg("top_p", "f32", b)
	u, most := e.arg("u", "f64", d.steps, b), e.arg("most", "i32")
	first := len(e.args)
	caches := cacheArgs(e, s, elem, b, d.size)
	n := newNet(e, s, elem, lora)

	zero, one := e.constant("i32", 0), e.constant("i32", 1)
	init := append([]value{zero, last, pos, active, e.constant("i32", -1, d.steps, b), e.constant("f32", 0, d.steps, b)}, caches...)
	out := e.while(init,
		func(c []value) value {
			return e.and(e.compare("LT", c[0], most), e.reduce(c[3], "or", 0))
		},
		func(c []value) []value {
			step, token, pos, active, ids, lps := c[0], c[1], c[2], c[3], c[4], c[5]
			logits, caches := n.step(token, pos, c[6:])
			next := e.add(pos, e.constant("i32", 1, b))
			drawn, lp := draw.draw(logits, e.reshape(e.dynamicSlice(u, []value{step, zero}, 1, b), b))
			ids = e.dynamicUpdate(ids, e.reshape(e.choose(active, drawn, e.constant("i32", -1, b)), 1, b), step, zero)
			lps = e.dynamicUpdate(lps, e.reshape(lp, 1, b), step, zero)
			stopped := e.reduce(e.compare("EQ", stop, e.broadcast(drawn, []int{0}, b, d.stops)), "or", 1)
			more := e.add(step, one)
			going := e.and(e.unary("not", stopped), e.compare("LT", e.broadcast(more, nil, b), limit))
			return append([]value{
				more,
				e.choose(active, drawn, token),
				e.choose(active, next, pos),
				e.and(active, going), ids, lps}, caches...)
		})
	results := append([]value{out[4], out[5]}, out[6:]...)
	aliasCaches(e, s, first, 2)
	return results
}

// step feeds one token per slot: token and pos [B] i32. It returns logits [B, V]
// and the new caches.
func (n *net) step(token, pos value, caches []value) (value, []value) {
	s, b, size := n.s, token.dims[0], caches[0].dims[2]
	x := n.convert(n.rows(n.embed, token), "f32")
	cos, sin := n.ropeTables(pos)
	mask := n.compare("LE", n.iota("i32", 1, b, size), n.broadcast(pos, []int{0}, b, size))
	mask = n.broadcast(mask, []int{0, 3}, b, s.kv, s.rep(), size)
	var out []value
	for l := range s.layers {
		q, k, v := n.qkv(l, x, cos, sin)
		kc, vc := n.writeRows(caches[2*l], k, pos), n.writeRows(caches[2*l+1], v, pos)
		out = append(out, kc, vc)
		q4 := n.reshape(q, b, s.kv, s.rep(), s.headDim)
		scores := n.dot(q4, []int{0, 1}, []int{3}, kc, []int{0, 1}, []int{3}) // [B,KV,R,S]
		o := n.softmaxAV(scores, mask, vc, 2)
		x = n.finish(l, x, n.reshape(o, b, s.qDim()))
	}
	return n.logits(x), out
}

// writeRows puts u [B, KV, D] at each slot's own position of a cache.
func (n *net) writeRows(cache, u, pos value) value {
	zero := n.constant("i32", 0)
	for b := range u.dims[0] {
		row := n.reshape(n.slice(u, 0, b, b+1), 1, n.s.kv, 1, n.s.headDim)
		at := n.reshape(n.slice(pos, 0, b, b+1))
		cache = n.dynamicUpdate(cache, row, n.constant("i32", float64(b)), zero, at, zero)
	}
	return cache
}

// emitPrefill appends t tokens to one slot. Arguments: ids [t] i32, slot i32,
// start i32 (the slot's length), caches, weights, adapters. Results: caches.
// Positions start..start+t-1 must lie inside the cache; padding at the end of
// ids writes positions past the slot's new length, which nothing reads.
func emitPrefill(e *emitter, s shape, elem string, lora *loraShape, slots, size, t int) []value {
	ids, slot, start := e.arg("ids", "i32", t), e.arg("slot", "i32"), e.arg("start", "i32")
	first := len(e.args)
	caches := cacheArgs(e, s, elem, slots, size)
	n := newNet(e, s, elem, lora)
	zero := e.constant("i32", 0)
	pos := e.add(e.iota("i32", 0, t), e.broadcast(start, nil, t))
	cos, sin := n.ropeTables(pos)
	mask := e.compare("LE", e.iota("i32", 1, t, size), e.broadcast(pos, []int{0}, t, size))
	mask = e.reshape(e.broadcast(mask, []int{2, 3}, s.kv, s.rep(), t, size), s.kv, s.rep()*t, size)
	x := e.convert(e.rows(n.embed, ids), "f32")
	for l := range s.layers {
		q, k, v := n.qkv(l, x, cos, sin)
		put := func(c *value, u value) value { // write [t,KV,D], read back the slot [KV,S,D]
			u = e.reshape(e.transpose(u, 1, 0, 2), 1, s.kv, t, s.headDim)
			*c = e.dynamicUpdate(*c, u, slot, zero, start, zero)
			return e.reshape(e.dynamicSlice(*c, []value{slot, zero, zero, zero}, 1, s.kv, size, s.headDim), s.kv, size, s.headDim)
		}
		kk, vv := put(&caches[2*l], k), put(&caches[2*l+1], v)
		if l == s.layers-1 {
			break // the last layer's output is not needed: only its K and V
		}
		q3 := e.reshape(e.transpose(e.reshape(q, t, s.kv, s.rep(), s.headDim), 1, 2, 0, 3), s.kv, s.rep()*t, s.headDim)
		scores := e.dot(q3, []int{0}, []int{2}, kk, []int{0}, []int{2}) // [KV,R*t,S]
		o := n.softmaxAV(scores, mask, vv, 1)
		o = e.reshape(e.transpose(e.reshape(o, s.kv, s.rep(), t, s.headDim), 2, 0, 1, 3), t, s.qDim())
		x = n.finish(l, x, o)
	}
	aliasCaches(e, s, first, 0)
	return caches
}

// emitCopySlot copies a slot's whole cache: dst i32, src i32, caches.
func emitCopySlot(e *emitter, s shape, elem string, slots, size int) []value {
	dst, src := e.arg("dst", "i32"), e.arg("src", "i32")
	first := len(e.args)
	caches := cacheArgs(e, s, elem, slots, size)
	zero := e.constant("i32", 0)
	for i, c := range caches {
		row := e.dynamicSlice(c, []value{src, zero, zero, zero}, 1, s.kv, size, s.headDim)
		caches[i] = e.dynamicUpdate(c, row, dst, zero, zero, zero)
	}
	aliasCaches(e, s, first, 0)
	return caches
}

// emitResize copies caches of size positions into caches of to positions,
// dropping or adding at the end.
func emitResize(e *emitter, s shape, elem string, slots, size, to int) []value {
	caches := cacheArgs(e, s, elem, slots, size)
	for i, c := range caches {
		if to < size {
			caches[i] = e.slice(c, 2, 0, to)
		} else {
			caches[i] = e.concat(2, c, e.constant(elem, 0, slots, s.kv, to-size, s.headDim))
		}
	}
	return caches
}
