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
	// filter adds top-k, top-p and min-p, raw the logprobs of the model's own
	// distribution. Rows that need neither may share the call: theirs are the
	// same sums, grouped differently by the compiler.
	filter, raw bool
	// logits returns those of the step; steps is 1 then.
	logits bool
}

func (d decodeSpec) String() string {
	s := fmt.Sprintf("%d of %d x %d, %d stops", d.steps, d.slots, d.size, d.stops)
	for _, f := range []struct {
		on   bool
		name string
	}{{d.filter, "filters"}, {d.raw, "raw"}, {d.logits, "logits"}} {
		if f.on {
			s += ", " + f.name
		}
	}
	return s
}

// emitDecode makes up to `most` tokens per row in one call. Arguments:
//
//	last [B] i32, pos [B] i32 (where last goes), place [B] i32 (adapter; 0 = base),
//	active [B] i1, limit [B] i32, stop [B,stops] i32 (padded with -1),
//	greedy [B] i1, inv [B] f32 (1/temperature), topK [B] i32, topP [B] f64,
//	minP [B] f32, u [steps,B] f64 (one uniform per draw), most i32,
//	caches, weights, adapters
//
// Results: ids [steps,B] i32 (-1 where a row was done), logprobs [steps,B] f32,
// raw logprobs likewise (zeros unless asked for), logits [B,V] f32 when asked
// for, caches. Rows that are not active write one position past their length,
// which the caller keeps free; nothing reads it.
func emitDecode(e *emitter, s shape, elem string, st *stackShape, d decodeSpec) []value {
	b := d.slots
	last, pos, place := e.arg("last", "i32", b), e.arg("pos", "i32", b), e.arg("place", "i32", b)
	active, limit, stop := e.arg("active", "i1", b), e.arg("limit", "i32", b), e.arg("stop", "i32", b, d.stops)
	draw := &sampler{emitter: e, vocab: s.vocab, filter: d.filter, raw: d.raw}
	draw.greedy, draw.inv = e.arg("greedy", "i1", b), e.arg("inv", "f32", b)
	draw.topK, draw.topP, draw.minP = e.arg("top_k", "i32", b), e.arg("top_p", "f64", b), e.arg("min_p", "f32", b)
	u, most := e.arg("u", "f64", d.steps, b), e.arg("most", "i32")
	first := len(e.args)
	caches := cacheArgs(e, s, elem, b, d.size)
	n := newNet(e, s, elem, st)
	st.own(n, place)

	zero, one := e.constant("i32", 0), e.constant("i32", 1)
	var logits value
	step := func(c []value) []value {
		step, token, pos, active, ids, lps, raws := c[0], c[1], c[2], c[3], c[4], c[5], c[6]
		var caches []value
		logits, caches = n.step(token, pos, c[7:])
		next := e.add(pos, e.constant("i32", 1, b))
		drawn, lp, raw := draw.draw(logits, e.reshape(e.dynamicSlice(u, []value{step, zero}, 1, b), b))
		ids = e.dynamicUpdate(ids, e.reshape(e.choose(active, drawn, e.constant("i32", -1, b)), 1, b), step, zero)
		lps = e.dynamicUpdate(lps, e.reshape(lp, 1, b), step, zero)
		if d.raw {
			raws = e.dynamicUpdate(raws, e.reshape(raw, 1, b), step, zero)
		}
		stopped := e.reduce(e.compare("EQ", stop, e.broadcast(drawn, []int{0}, b, d.stops)), "or", 1)
		more := e.add(step, one)
		going := e.and(e.unary("not", stopped), e.compare("LT", e.broadcast(more, nil, b), limit))
		return append([]value{
			more,
			e.choose(active, drawn, token),
			e.choose(active, next, pos),
			e.and(active, going), ids, lps, raws}, caches...)
	}
	c := append([]value{zero, last, pos, active, e.constant("i32", -1, d.steps, b), e.constant("f32", 0, d.steps, b), e.constant("f32", 0, d.steps, b)}, caches...)
	results := []value{}
	if d.logits {
		c = step(c)
		results = append(results, c[4], c[5], c[6], logits)
	} else {
		c = e.while(c, func(c []value) value {
			return e.and(e.compare("LT", c[0], most), e.reduce(c[3], "or", 0))
		}, step)
		results = append(results, c[4], c[5], c[6])
	}
	aliasCaches(e, s, first, len(results))
	return append(results, c[7:]...)
}

// step feeds one token per slot: token and pos [B] i32. It returns logits [B, V]
// and the new caches.
func (n *net) step(token, pos value, caches []value) (value, []value) {
	s, b, size := n.s, token.dims[0], caches[0].dims[2]
	x := n.embedded(token)
	ropes := n.rotaries(pos)
	row, col := n.spread(pos, size), n.iota("i32", 1, b, size)
	masks := map[int]value{}
	var out []value
	for l, y := range n.layers {
		w := y.kind.window
		if _, ok := masks[w]; !ok {
			masks[w] = n.broadcast(y.visible(row, col), []int{0, 3}, b, s.kv, s.rep(), size)
		}
		x = y.forward(x, y.rope(ropes), func(q, k, v value) value {
			kc, vc := n.writeRows(caches[2*l], k, pos), n.writeRows(caches[2*l+1], v, pos)
			out = append(out, kc, vc)
			scores := n.dot(n.reshape(q, b, s.kv, s.rep(), s.headDim), []int{0, 1}, []int{3}, kc, []int{0, 1}, []int{3}) // [B,KV,R,S]
			return n.reshape(n.softmaxAV(scores, masks[w], vc), b, s.qDim())
		})
	}
	return n.logits(x), out
}

// softmaxAV is attention over scores [B, KV, Q, S] in f32, a mask of as many
// elements, values [B, KV, S, D]. Result [B, KV, Q, D].
func (n *net) softmaxAV(scores, mask, v value) value {
	size := scores.dims[3]
	scores = n.masked(n.capped(scores, n.s.attnCap), mask)
	p := n.exp(n.sub(scores, n.spread(n.reduce(scores, "maximum", 3), size)))
	sum := n.reduce(p, "add", 3)
	o := n.dot(n.low(p), []int{0, 1}, []int{3}, v, []int{0, 1}, []int{2})
	return n.div(o, n.spread(sum, n.s.headDim))
}

// writeRows puts u [B, KV, D] at each slot's own position of a cache.
func (n *net) writeRows(cache, u, pos value) value {
	b := u.dims[0]
	if n.accel {
		at := n.concat(1, n.iota("i32", 0, b, 1), n.reshape(pos, b, 1))
		return n.setAt(cache, at, u, 0, 2)
	}
	zero := n.constant("i32", 0)
	for i := range b {
		row := n.reshape(n.slice(u, 0, i, i+1), 1, n.s.kv, 1, n.s.headDim)
		at := n.reshape(n.slice(pos, 0, i, i+1))
		cache = n.dynamicUpdate(cache, row, n.constant("i32", float64(i)), zero, at, zero)
	}
	return cache
}

// emitPrefill appends t tokens to each of n slots. Arguments: ids [n,t] i32,
// slot [n] i32, start [n] i32 (the slots' lengths), place [n] i32, caches,
// weights, adapters. Results: with logits those of every token [n*t,V] f32,
// caches. Positions start to start+t-1 must lie inside the cache; padding at the end of ids writes positions past the slot's
// new length, which nothing reads. A row may be given twice with equal data.
func emitPrefill(e *emitter, s shape, elem string, st *stackShape, slots, size, rows, t int, logits bool) []value {
	ids, slot, start, place := e.arg("ids", "i32", rows, t), e.arg("slot", "i32", rows), e.arg("start", "i32", rows), e.arg("place", "i32", rows)
	first := len(e.args)
	caches := cacheArgs(e, s, elem, slots, size)
	n := newNet(e, s, elem, st)
	m := rows * t
	each := func(x value, i int) value { return e.reshape(e.slice(x, 0, i, i+1)) }
	pos := e.add(e.spread(start, t), e.iota("i32", 1, rows, t))
	st.own(n, e.reshape(e.spread(place, t), m))
	zero := e.constant("i32", 0)
	ropes := n.rotaries(e.reshape(pos, m))
	row, col := e.spread(pos, size), e.iota("i32", 2, rows, t, size)
	x := n.embedded(e.reshape(ids, m))
	for l, y := range n.layers {
		b := y.before(x, y.rope(ropes))
		put := func(c *value, u value) value { // write [n*t,KV,D], read the slots back [n,KV,S,D]
			u = e.transpose(e.reshape(u, rows, t, s.kv, s.headDim), 0, 2, 1, 3)
			for i := range rows {
				*c = e.dynamicUpdate(*c, e.slice(u, 0, i, i+1), each(slot, i), zero, each(start, i), zero)
			}
			var back []value
			for i := range rows {
				back = append(back, e.dynamicSlice(*c, []value{each(slot, i), zero, zero, zero}, 1, s.kv, size, s.headDim))
			}
			return e.concat(0, back...)
		}
		kk, vv := put(&caches[2*l], b.k), put(&caches[2*l+1], b.v)
		if l == s.layers-1 && !logits {
			break // the last layer's output is not needed: only its K and V
		}
		q := e.reshape(e.transpose(e.reshape(b.q, rows, t, s.kv, s.rep(), s.headDim), 0, 2, 3, 1, 4), rows, s.kv, s.rep()*t, s.headDim)
		scores := e.dot(q, []int{0, 1}, []int{3}, kk, []int{0, 1}, []int{3}) // [n,KV,R*t,S]
		mask := e.broadcast(y.visible(row, col), []int{0, 3, 4}, rows, s.kv, s.rep(), t, size)
		o := n.softmaxAV(scores, mask, vv)
		o = e.reshape(e.transpose(e.reshape(o, rows, s.kv, s.rep(), t, s.headDim), 0, 3, 1, 2, 4), m, s.qDim())
		x = y.after(x, o).out
	}
	var results []value
	if logits {
		results = append(results, n.logits(x))
	}
	aliasCaches(e, s, first, len(results))
	return append(results, caches...)
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
			caches[i] = e.pad(c, 2, to)
		}
	}
	return caches
}
