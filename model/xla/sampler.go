//go:build xla

package xla

import "math"

// Sampling on the device, with the law and the uniform numbers of model/sample:
// the token is the one where the cumulative distribution, in the order of ids,
// passes u. It is found in two levels, blocks of the vocabulary and then tokens
// of one block; sums over blocks are f64, so small probabilities keep their
// share. Greedy is the same search over the indicator of the maximum with u = 0.

// blockSize is the size of a block of the vocabulary: near its root, so that both
// levels of the search stay short.
func blockSize(vocab int) int {
	if vocab > 100_000 {
		return 512
	}
	return 256
}

// paddedVocab is the row length sampling works on.
func paddedVocab(v int) int {
	block := blockSize(v)
	return (v + block - 1) / block * block
}

// sampler draws from logits of B rows.
type sampler struct {
	*emitter
	vocab  int
	filter bool  // emit top-k, top-p and min-p
	raw    bool  // emit the logprob under softmax(logits) too
	greedy value // [B] i1
	inv    value // [B] f32: 1/temperature; 1 for greedy rows
	topK   value // [B] i32; 0 is off
	topP   value // [B] f64; 1 is off
	minP   value // [B] f32; 0 is off
}

// total sums [B, V] to [B] f64: columns in f32, which XLA vectorises, then those
// of a block in f64, so that thresholds of filters stay exact enough to agree
// with the host on a flat distribution over a large vocabulary.
func (s *sampler) total(x value) value {
	b, v, block := x.dims[0], x.dims[1], blockSize(s.vocab)
	part := s.reduce(s.reshape(x, b, v/block, block), "add", 1)
	return s.reduce(s.convert(s.barrier(part), "f64"), "add", 1)
}

// over reduces [B, V] to [B]; the middle axis first, which XLA vectorises.
func (s *sampler) over(x value, op string) value {
	b, v, block := x.dims[0], x.dims[1], blockSize(s.vocab)
	part := s.reduce(s.reshape(x, b, v/block, block), op, 1)
	return s.reduce(s.barrier(part), op, 1)
}

// draw gives the token [B] i32 at which the cumulative distribution passes u
// [B] f64, and its logprob [B] f32 under the distribution drawn from:
// softmax(logits/temperature) after the filters; for greedy rows
// softmax(logits). raw [B] f32 is that under softmax(logits), unset unless asked
// for. NaN logits give a NaN logprob.
func (s *sampler) draw(logits, u value) (token, logprob, raw value) {
	b, v, block := logits.dims[0], paddedVocab(s.vocab), blockSize(s.vocab)
	if pad := v - logits.dims[1]; pad > 0 {
		logits = s.concat(1, logits, s.constant("f32", math.Inf(-1), b, pad))
	}
	logits = s.barrier(logits)
	top := s.over(logits, "maximum")
	under := s.sub(logits, s.spread(top, v))
	y := s.mul(under, s.spread(s.inv, v))
	p := s.exp(y)
	if s.filter {
		p = s.barrier(s.filtered(y, p))
	}
	sum := s.over(p, "add")
	one, zero := s.constant("f32", 1, b, v), s.constant("f32", 0, b, v)
	best := s.choose(s.compare("GE", logits, s.spread(top, v)), one, zero)
	mass := s.barrier(s.choose(s.spread(s.greedy, v), best, p))

	blocks := v / block
	perBlock := s.convert(s.reduce(s.reshape(mass, b, blocks, block), "add", 2), "f64")
	edge := s.cumulative(perBlock)
	target := s.mul(u, s.reshape(s.slice(edge, 1, blocks-1, blocks), b))
	which := s.passing(edge, target, perBlock)
	before := s.reduce(s.choose(s.below(which, blocks), perBlock, s.constant("f64", 0, b, blocks)), "add", 1)

	row := s.add(s.mul(s.iota("i32", 0, b), s.constant("i32", float64(blocks), b)), which)
	in := s.rows(s.reshape(mass, b*blocks, block), row) // [B, block]
	rest := s.convert(s.sub(target, before), "f32")
	at := s.passing(s.cumulative(in), rest, in)
	token = s.add(s.mul(which, s.constant("i32", float64(block), b)), at)

	here := s.compare("EQ", s.iota("i32", 1, b, block), s.spread(at, block))
	pt := s.reduce(s.choose(here, in, s.constant("f32", 0, b, block)), "add", 1)
	if s.raw {
		z := s.rows(s.reshape(under, b*blocks, block), row)
		z = s.reduce(s.choose(here, z, s.constant("f32", 0, b, block)), "add", 1)
		raw = s.sub(z, s.unary("log", s.over(s.exp(under), "add")))
	}
	return token, s.sub(s.unary("log", pt), s.unary("log", sum)), raw
}

// cumulative is the inclusive running sum of rows, as a product with a triangle.
func (s *sampler) cumulative(x value) value {
	n := x.dims[1]
	tri := s.convert(s.compare("LE", s.iota("i32", 0, n, n), s.iota("i32", 1, n, n)), x.elem)
	return s.dotAs(x.elem, x, nil, []int{1}, tri, nil, []int{0})
}

// below marks the columns before k [B].
func (s *sampler) below(k value, n int) value {
	return s.compare("LT", s.iota("i32", 1, k.dims[0], n), s.spread(k, n))
}

// passing is the first column whose running sum exceeds target; where rounding
// leaves none, the last column that has any mass.
func (s *sampler) passing(sums, target, mass value) value {
	b, n := sums.dims[0], sums.dims[1]
	first := s.reduce(s.convert(s.compare("LE", sums, s.spread(target, n)), "i32"), "add", 1)
	has := s.compare("GT", mass, s.constant(mass.elem, 0, b, n))
	col := s.convert(s.iota("i32", 1, b, n), "f32")
	last := s.convert(s.reduce(s.choose(has, col, s.constant("f32", 0, b, n)), "maximum", 1), "i32")
	return s.binary("minimum", first, last)
}

// filtered zeroes p outside the top-k tokens, then outside the smallest set of
// the rest whose mass reaches top-p (Holtzman et al. 2020, arXiv:1904.09751,
// equation 2), then where it is below min-p times the likeliest's, which is 1
// (Nguyen et al. 2024, arXiv:2407.01082, section 3). Tokens of exactly equal logits stand or fall together, where
// model/sample keeps the lower ids.
func (s *sampler) filtered(y, p value) value {
	b, v := y.dims[0], y.dims[1]
	order := s.ordered(y)
	one, zero := s.constant("f32", 1, b, v), s.constant("f32", 0, b, v)
	off := s.constant("ui32", 0, b)
	onK := s.compare("GT", s.topK, s.constant("i32", 0, b))
	cutK := s.choose(onK, s.cutoff(order, one, s.convert(s.topK, "f64")), off)
	p = s.choose(s.compare("GE", order, s.spread(cutK, v)), p, zero)
	onP := s.compare("LT", s.topP, s.constant("f64", 1, b))
	cutP := s.choose(onP, s.cutoff(order, p, s.mul(s.topP, s.total(p))), off)
	p = s.choose(s.compare("GE", order, s.spread(cutP, v)), p, zero)
	return s.choose(s.compare("GE", p, s.spread(s.minP, v)), p, zero)
}

// ordered maps f32 to ui32 so that order is kept.
func (s *sampler) ordered(y value) value {
	bits := s.bitcast(y, "ui32")
	sign := s.constant("ui32", 0x80000000, y.dims...)
	negative := s.compare("GE", bits, sign)
	return s.choose(negative, s.unary("not", bits), s.binary("xor", bits, sign))
}

// cutoff is, per row, the greatest t with sum(weight where order >= t) >= target
// (f64):
// 32 steps of binary search, one bit of t a step, instead of a sort.
func (s *sampler) cutoff(order, weight, target value) value {
	b, v := order.dims[0], order.dims[1]
	zero := s.constant("f32", 0, b, v)
	out := s.while([]value{s.constant("ui32", 0x80000000), s.constant("ui32", 0, b)},
		func(c []value) value { return s.compare("NE", c[0], s.constant("ui32", 0)) },
		func(c []value) []value {
			t := s.binary("or", c[1], s.broadcast(c[0], nil, b))
			mass := s.total(s.choose(s.compare("GE", order, s.spread(t, v)), weight, zero))
			enough := s.compare("GE", mass, target)
			return []value{s.binary("shift_right_logical", c[0], s.constant("ui32", 1)), s.choose(enough, t, c[1])}
		})
	return out[1]
}
