//go:build xla

package xla

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// drawOnHost draws one token for every unfinished host row from the step's
// logits [B, V]. Only those rows' logits leave the device.
func (d *decoder) drawOnHost(logits *pjrt.Buffer, rows []model.DecodeRow, slots []rowState, out []model.DecodeOut) error {
	b, v := d.cfg.Slots, d.b.shape.vocab
	p, err := d.b.stablehlo(fmt.Sprintf("row of logits %d", b), func(e *emitter) []value {
		all, i := e.arg("logits", "f32", b, v), e.arg("i", "i32")
		return []value{e.reshape(e.dynamicSlice(all, []value{i, e.constant("i32", 0)}, 1, v), v)}
	})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	busy := make(chan struct{}, runtime.GOMAXPROCS(0)) // bounds the rows held at once
	for i := range slots {
		if slots[i].done || !slots[i].host {
			continue
		}
		row, err := d.rowOfLogits(p, logits, i)
		if err != nil {
			return err
		}
		busy <- struct{}{}
		wg.Go(func() {
			d.drawRow(i, &slots[i], rows, row, out)
			<-busy
		})
	}
	return nil
}

func (d *decoder) rowOfLogits(p *program, logits *pjrt.Buffer, slot int) ([]float32, error) {
	at, err := d.ints(int32(slot))
	if err != nil {
		return nil, err
	}
	defer free(at...)
	res, err := d.b.dev.run(p, []*pjrt.Buffer{logits, at[0]})
	if err != nil {
		return nil, err
	}
	defer free(res...)
	return get[float32](res[0], d.b.shape.vocab)
}

// drawRow draws a slot's next token. A draw that fails ends its row only.
func (d *decoder) drawRow(slot int, s *rowState, rows []model.DecodeRow, logits []float32, out []model.DecodeOut) {
	r, o := &rows[s.row], &out[s.row]
	d.length[slot]++ // the token fed
	id, err := sample.DrawRow(logits, r, s.history, d.length[slot], o)
	if err != nil {
		o.Err = fmt.Errorf("xla: decode row %d at position %d: %w", s.row, d.length[slot], err)
		s.done = true
		return
	}
	s.history = append(s.history, id)
	s.last = id
	s.left--
	o.Stopped = slices.Contains(r.Stop, id)
	s.done = o.Stopped || s.left <= 0
}
