//go:build xla

package xla

import (
	"context"
	"errors"
	"sync"

	"github.com/gomlx/go-xla/pkg/pjrt"
)

// lane is a trainer's part on one device. Batch i of a Forward belongs to lane
// i mod the number of lanes; lanes run at once, each its batches in order.
type lane struct {
	t      *trainer
	dev    *device
	params parameters
	zeros  map[int]*pjrt.Buffer // a layer's vector of the base model, by size
}

// parameters are a parameter vector on a device.
type parameters struct {
	layers []*pjrt.Buffer // one flat LoRA vector per layer
	value  *pjrt.Buffer   // [hidden], the value head's weights; nil without one
}

func (p parameters) free() {
	free(p.layers...)
	free(p.value)
}

// upload moves a vector of the trainer's layout to the lane's device; nil is the
// base.
func (l *lane) upload(p []float32) (out parameters, done func(), err error) {
	if p == nil {
		for _, shape := range l.t.lora {
			out.layers = append(out.layers, l.zeros[shape.size])
		}
		return out, func() {}, nil
	}
	out.layers, err = l.layers(p)
	if err == nil && l.t.cfg.Value {
		out.value, err = l.dev.putF32(p[l.t.lora.size():], l.t.b.shape.hidden)
	}
	if err != nil {
		out.free()
		return parameters{}, nil, err
	}
	return out, out.free, nil
}

// layers puts each layer's part of a flat vector on the lane's device. Those that
// it could put are given with an error too.
func (l *lane) layers(p []float32) (out []*pjrt.Buffer, err error) {
	err = l.t.lora.each(p, func(_ int, own []float32) error {
		b, err := l.dev.putF32(own, len(own))
		if err == nil {
			out = append(out, b)
		}
		return err
	})
	return out, err
}

// deal calls f for batches 0 to n-1 on their lanes. The first error ends the
// others' ctx.
func (t *trainer) deal(ctx context.Context, n int, f func(ctx context.Context, l *lane, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(t.lanes))
	var wg sync.WaitGroup
	for k, l := range t.lanes {
		wg.Go(func() {
			for i := k; i < n; i += len(t.lanes) {
				if errs[k] = f(ctx, l, i); errs[k] != nil {
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	first := errors.Join(errs...)
	for _, err := range errs { // not those that only heard of it
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return first
}
