package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that callers tell apart. They are wrapped with the tool's name.
var (
	// ErrUnknown: no tool of that name. The message lists the valid names.
	ErrUnknown = errors.New("unknown tool")
	// ErrArguments: the arguments do not fit the tool's schema.
	ErrArguments = errors.New("bad arguments")
	// ErrTimeout: the tool did not answer within its time.
	ErrTimeout = errors.New("timed out")
)

// Func executes one call. args is a JSON object that satisfies the tool's
// schema. It must return soon after ctx ends; a function that does not is
// abandoned, and its late result dropped.
type Func func(ctx context.Context, args json.RawMessage) (string, error)

// Tool joins a description with its implementation.
type Tool struct {
	Spec Spec
	Func Func
	// Timeout bounds one call. 0 means the registry's default.
	Timeout time.Duration
}

// DefaultTimeout bounds a call of a tool that sets no timeout of its own.
const DefaultTimeout = 10 * time.Second

// Registry is an Env over a fixed set of tools: it finds the tool, validates
// the arguments, and bounds the call in time. Build it, then share it: Call is
// safe for concurrent use, Add is not.
type Registry struct {
	tools  map[string]entry
	order  []string
	limits time.Duration
}

type entry struct {
	tool   Tool
	schema *Schema
}

// NewRegistry registers the given tools in order.
func NewRegistry(tools ...Tool) (*Registry, error) {
	r := &Registry{tools: map[string]entry{}, limits: DefaultTimeout}
	for _, t := range tools {
		if err := r.Add(t); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Add registers one tool. Errors: empty or repeated name, nil Func, negative
// timeout, a schema that is not an object schema or uses an unsupported keyword.
func (r *Registry) Add(t Tool) error {
	name := t.Spec.Name
	switch {
	case name == "":
		return errors.New("tool: name is empty; give Spec.Name")
	case t.Func == nil:
		return fmt.Errorf("tool %s: Func is nil; give an implementation", name)
	case t.Timeout < 0:
		return fmt.Errorf("tool %s: Timeout %v is negative; use 0 for the default of %v", name, t.Timeout, DefaultTimeout)
	}
	if _, dup := r.tools[name]; dup {
		return fmt.Errorf("tool %s: registered twice; names are unique", name)
	}
	s, err := ParseSchema(t.Spec.Parameters)
	if err != nil {
		return fmt.Errorf("tool %s: parameters: %w", name, err)
	}
	r.tools[name] = entry{tool: t, schema: s}
	r.order = append(r.order, name)
	return nil
}

// Specs lists the descriptions in order of registration.
func (r *Registry) Specs() []Spec {
	out := make([]Spec, len(r.order))
	for i, n := range r.order {
		out[i] = r.tools[n].tool.Spec
	}
	return out
}

// Call executes one call. The error wraps ErrUnknown, ErrArguments or
// ErrTimeout where one of them fits; anything else is the tool's own error. A
// panic of the tool is an error too.
func (r *Registry) Call(ctx context.Context, call Call) (string, error) {
	e, ok := r.tools[call.Name]
	if !ok {
		return "", fmt.Errorf("%w %q; tools: %s", ErrUnknown, call.Name, strings.Join(r.order, ", "))
	}
	if err := e.schema.Validate(call.Arguments); err != nil {
		return "", fmt.Errorf("%s: %w: %w", call.Name, ErrArguments, err)
	}
	limit := e.tool.Timeout
	if limit == 0 {
		limit = r.limits
	}
	return Bounded(ctx, limit, func(ctx context.Context) (string, error) {
		return e.tool.Func(ctx, call.Arguments)
	})
}

// Bounded runs f for at most limit and turns a panic into an error. When the
// time is over it returns at once with ErrTimeout, even if f ignores its
// context; f then ends by itself and its result is dropped (P8). When ctx ends
// first, the error is ctx's cause.
func Bounded[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, context.Cause(ctx)
	}
	callCtx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w after %v", ErrTimeout, limit))
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer cancel()
		var res result
		defer func() {
			if p := recover(); p != nil {
				res = result{err: fmt.Errorf("panic: %v", p)}
			}
			done <- res
		}()
		res.value, res.err = f(callCtx)
	}()
	var res result
	select {
	case res = <-done:
	case <-callCtx.Done():
		select {
		case res = <-done: // finished at the same moment, or cancel ran first
		default:
			return zero, context.Cause(callCtx)
		}
	}
	if res.err != nil {
		if errors.Is(res.err, context.DeadlineExceeded) || errors.Is(res.err, context.Canceled) {
			if cause := context.Cause(callCtx); cause != nil && !errors.Is(cause, context.Canceled) {
				return zero, cause
			}
		}
		return zero, res.err
	}
	return res.value, nil
}
