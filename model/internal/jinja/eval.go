package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits bounds one rendering.
type Limits struct {
	Steps int // nodes evaluated, and 64 bytes of string work each
	Bytes int // of the output, and of any one string
	Depth int // of calls and nested values
}

// DefaultLimits lets through a conversation of a few megabytes and ends a
// runaway template within a second or two.
func DefaultLimits() Limits { return Limits{Steps: 4 << 20, Bytes: 64 << 20, Depth: 1000} }

// ErrLimit marks a rendering that took more than its limits.
var ErrLimit = errors.New("jinja: the template takes too much")

// Render runs the template. now is what strftime_now reads.
func (t *Template) Render(vars *Dict, now func() time.Time, limits Limits) (out string, err error) {
	defer catch(&err)
	in := &interp{limits: limits, now: now}
	top := &scope{vars: map[string]any{}}
	for _, k := range vars.keys {
		v, _ := vars.get(k)
		top.vars[k.(string)] = v
	}
	var b strings.Builder
	in.exec(t.body, top, &b)
	return b.String(), nil
}

func catch(err *error) {
	if r := recover(); r != nil {
		e, ok := r.(renderError)
		if !ok {
			panic(r)
		}
		*err = e.error
	}
}

// interp is the state of one rendering.
type interp struct {
	limits Limits
	now    func() time.Time
	steps  int
	depth  int
}

// spend counts work on n bytes.
func (in *interp) spend(n int) {
	if n > in.limits.Bytes {
		panic(renderError{fmt.Errorf("%w: a string of %d bytes; at most %d are made", ErrLimit, n, in.limits.Bytes)})
	}
	if in.steps += 1 + n/64; in.steps > in.limits.Steps {
		panic(renderError{fmt.Errorf("%w: more than %d steps", ErrLimit, in.limits.Steps)})
	}
}

func (in *interp) enter() {
	in.spend(0)
	if in.depth++; in.depth > in.limits.Depth {
		panic(renderError{fmt.Errorf("%w: calls or values nested deeper than %d", ErrLimit, in.limits.Depth)})
	}
}

func (in *interp) leave() { in.depth-- }

func (in *interp) write(b *strings.Builder, s string) {
	if b.Len()+len(s) > in.limits.Bytes {
		panic(renderError{fmt.Errorf("%w: more than %d bytes of output", ErrLimit, in.limits.Bytes)})
	}
	in.spend(len(s))
	b.WriteString(s)
}
