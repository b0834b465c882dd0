package model

import "slices"

// ContextLimit is the longest sequence, prompt included, that the model serves
// as it is configured. For rope scaling that depends on the length (dynamic,
// longrope) it is the trained context, unless the model was opened
// WithLongContext. Yarn's is the scaled context where max_position_embeddings
// names the trained one.
func (c Config) ContextLimit() int {
	s := c.RopeScaling
	switch s.Type {
	case "dynamic":
		if s.Long {
			return max(s.scaledContext(), s.OriginalMaxPositions)
		}
		return s.OriginalMaxPositions
	case "longrope":
		if s.Long {
			return c.MaxPositionEmbeddings
		}
		return min(s.OriginalMaxPositions, c.MaxPositionEmbeddings)
	case "yarn":
		return max(c.MaxPositionEmbeddings, s.scaledContext())
	}
	return c.MaxPositionEmbeddings
}

// WithLongContext opens a model for sequences beyond the context it was trained
// with, up to Config.ContextLimit. It matters for the two kinds of rope scaling
// that depend on a sequence's length, since all positions of a cached sequence
// must have been rotated by the same table: dynamic then rotates by the
// frequencies of its longest context, longrope by its long factors, for short
// sequences too (transformers does so only while a sequence is long). What the
// model computes changes, and with it the digest: adapters trained without this
// option are refused with it. Other models are opened as without it.
func WithLongContext() OpenOption {
	return func(o *opening) { o.long = true }
}

// byLength reports whether a sequence's length chooses the frequencies.
func (s RopeScaling) byLength() bool {
	return s.Type == "dynamic" || s.Type == "longrope" && !slices.Equal(s.ShortFactor, s.LongFactor)
}

// longestContext is ContextLimit opened for long contexts.
func (c Config) longestContext() int {
	c.RopeScaling.Long = true
	return c.ContextLimit()
}
