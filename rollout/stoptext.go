package rollout

import (
	"bytes"
	"slices"
)

// textWatch follows the text of one completion and finds stop strings in it.
type textWatch struct {
	stream TextStream
	stops  []string
	text   []byte
	ends   []int  // length of text after each token
	given  int    // bytes of text handed out by take
	match  string // the stop string found
}

// push adds a token; true when its text completes a stop string, before which
// the text is then cut. Of several the one that begins first counts, then the
// first listed.
func (w *textWatch) push(id int32) bool {
	before := len(w.text)
	w.text = append(w.text, w.stream.Push(id)...)
	w.ends = append(w.ends, len(w.text))
	return w.search(before)
}

// end adds what the stream still holds: an unfinished character, or the bytes of
// a run that the next token would have ended. A stop string may lie in it.
func (w *textWatch) end() {
	if w.match == "" {
		before := len(w.text)
		w.text = append(w.text, w.stream.Flush()...)
		w.search(before)
	}
}

func (w *textWatch) search(from int) bool {
	best := -1
	for _, stop := range w.stops {
		start := max(0, from-len(stop)+1)
		if i := bytes.Index(w.text[start:], []byte(stop)); i >= 0 && (best < 0 || start+i < best) {
			best, w.match = start+i, stop
		}
	}
	if best < 0 {
		return false
	}
	w.text = w.text[:best]
	return true
}

// tokens is how many leading tokens the text comes from.
func (w *textWatch) tokens() int {
	if w.match == "" {
		return len(w.ends)
	}
	if len(w.text) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(w.ends, len(w.text))
	return i + 1
}

// take gives the text since the last call that no stop string can reach any
// more; all of it when the completion ended.
func (w *textWatch) take(ended bool) string {
	safe := len(w.text)
	if !ended {
		safe -= w.partial()
	}
	if safe <= w.given {
		return ""
	}
	out := string(w.text[w.given:safe])
	w.given = safe
	return out
}

// partial is the length of the longest end of the text that begins a stop
// string.
func (w *textWatch) partial() int {
	longest := 0
	for _, stop := range w.stops {
		for n := min(len(stop)-1, len(w.text)); n > longest; n-- {
			if bytes.HasSuffix(w.text, []byte(stop[:n])) {
				longest = n
			}
		}
	}
	return longest
}
