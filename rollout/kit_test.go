package rollout

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDecoder is a language model whose next token and logprob are a hash of
// everything cached, each cached token together with the adapter it was
// computed under, of the adapter in use, and of the seed. A cache that is wrong
// in any way gives other tokens.
type fakeDecoder struct {
	maxLen   int
	adapters map[int]uint64 // tag by place; the base is 0
	slots    [][]cell
	stop     int32 // emitted about every seventh token; 0 = never
	prefill  func(rows []model.PrefillRow) error
	decode   func(rows []model.DecodeRow) error // called before each Decode
	rowErr   func(row model.DecodeRow) error    // DecodeOut.Err
	overrun  bool                               // rows that stopped run on with the others in the cache
	closed   bool
	rows     int // largest batch seen
	chunk    int // largest prefill seen, in tokens
}

type cell struct {
	id      int32
	adapter uint64
}

func newFakeDecoder(slots, maxLen int) *fakeDecoder {
	return &fakeDecoder{maxLen: maxLen, slots: make([][]cell, slots), adapters: map[int]uint64{}}
}

func adapterTag(a *model.Adapter) uint64 {
	if a == nil {
		return 0
	}
	return uint64(a.Params[0])
}

func fakeAdapter(tag uint64) *model.Adapter {
	return &model.Adapter{Params: []float32{float32(tag)}}
}

func (d *fakeDecoder) SetAdapter(place int, a *model.Adapter) error {
	switch {
	case place < 1:
		return fmt.Errorf("place %d", place)
	case a == nil:
		delete(d.adapters, place)
		return nil
	case a.Params[0] < 0:
		return errors.New("adapter of another base")
	}
	d.adapters[place] = adapterTag(a)
	return nil
}

func (d *fakeDecoder) tag(place int) (uint64, error) {
	tag, ok := d.adapters[place]
	if place != 0 && !ok {
		return 0, fmt.Errorf("place %d is empty", place)
	}
	return tag, nil
}
func (d *fakeDecoder) Len(slot int) int { return len(d.slots[slot]) }
func (d *fakeDecoder) Truncate(slot, n int) {
	d.slots[slot] = d.slots[slot][:min(n, len(d.slots[slot]))]
}
func (d *fakeDecoder) CopyPrefix(dst, src, n int) error {
	d.slots[dst] = slices.Clone(d.slots[src][:n])
	return nil
}

func (d *fakeDecoder) append(slot int, adapter uint64, ids ...int32) error {
	for _, id := range ids {
		if len(d.slots[slot]) == d.maxLen {
			return fmt.Errorf("slot %d is full", slot)
		}
		d.slots[slot] = append(d.slots[slot], cell{id, adapter})
	}
	return nil
}

func (d *fakeDecoder) Prefill(ctx context.Context, rows []model.PrefillRow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.prefill != nil {
		if err := d.prefill(rows); err != nil {
			return err
		}
	}
	tokens := 0
	for _, r := range rows {
		tag, err := d.tag(r.Adapter)
		if err := errors.Join(err, d.append(r.Slot, tag, r.Tokens...)); err != nil {
			return err
		}
		tokens += len(r.Tokens)
	}
	d.chunk = max(d.chunk, tokens)
	return nil
}

func (d *fakeDecoder) Decode(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, error) {
	d.rows = max(d.rows, len(rows))
	if d.decode != nil {
		if err := d.decode(rows); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	outs := make([]model.DecodeOut, len(rows))
	for i, r := range rows {
		o := &outs[i]
		last := r.Last
		tag, err := d.tag(r.Adapter)
		if err != nil {
			return nil, err
		}
		if d.rowErr != nil {
			if o.Err = d.rowErr(r); o.Err != nil {
				continue
			}
		}
		for range min(n, r.MaxNew) {
			if o.Stopped && !d.overrun {
				break
			}
			if err := d.append(r.Slot, tag, last); err != nil {
				return nil, err
			}
			id, lp := fakeNext(d.slots[r.Slot], tag, r.Sampling.Seed, d.stop)
			last = id
			if o.Stopped {
				continue
			}
			o.IDs, o.Logprobs = append(o.IDs, id), append(o.Logprobs, lp)
			if r.Raw {
				o.Raw = append(o.Raw, 2*lp)
			}
			if r.Top > 0 {
				o.Top = append(o.Top, []model.TokenLogprob{{ID: id, Logprob: 2 * lp}})
			}
			o.Stopped = slices.Contains(r.Stop, id)
		}
	}
	return outs, nil
}

func (d *fakeDecoder) Close() error { d.closed = true; return nil }

func fakeNext(cells []cell, adapter, seed uint64, stop int32) (int32, float32) {
	h := fnv.New64a()
	fmt.Fprint(h, adapter, seed, len(cells))
	for _, c := range cells {
		fmt.Fprint(h, c.id, "@", c.adapter, " ")
	}
	x := h.Sum64()
	if stop != 0 && x%7 == 0 {
		return stop, -1 / float32(x%1000+1)
	}
	return int32(x%50) + 1, -1 / float32(x%1000+1)
}

// coldNext is what a decoder without any cache gives after seq under one
// adapter.
func coldNext(seq []int32, adapter, seed uint64, stop int32) (int32, float32) {
	cells := make([]cell, len(seq))
	for i, id := range seq {
		cells[i] = cell{id, adapter}
	}
	return fakeNext(cells, adapter, seed, stop)
}

// byteChat is a ChatML-like template over a byte vocabulary with two marks and
// one merged token, so that text has more than one tokenisation.
type byteChat struct {
	dropThoughts bool // history without <think>…</think>, as some templates do
	trim         bool // history with assistant content trimmed
}

const (
	idStart  int32 = 256 // <|start|>
	idEnd    int32 = 257 // <|end|>
	idMerged int32 = 258 // "ab"
)

var byteMarks = map[string]int32{"<|start|>": idStart, "<|end|>": idEnd}

func (c byteChat) Render(messages []Message, tools []tool.Spec, generate bool) (string, error) {
	var b strings.Builder
	for _, t := range tools {
		fmt.Fprintf(&b, "[%s]", t.Name)
	}
	for i, m := range messages {
		if m.Role == "refuse" {
			return "", errors.New("unknown role refuse")
		}
		content := m.Content
		if c.trim && m.Role == "assistant" {
			content = strings.TrimSpace(content)
		}
		if c.dropThoughts && m.Role == "assistant" && i < len(messages)-1 {
			if _, after, ok := strings.Cut(content, thinkClose); ok {
				content = strings.TrimSpace(after)
			}
		}
		fmt.Fprintf(&b, "<|start|>%s\n%s<|end|>\n", m.Role, content)
	}
	if generate {
		b.WriteString("<|start|>assistant\n")
	}
	return b.String(), nil
}

func (byteChat) Encode(text string) []int32 {
	var ids []int32
	for len(text) > 0 {
		marked := false
		for mark, id := range byteMarks {
			if strings.HasPrefix(text, mark) {
				ids, text, marked = append(ids, id), text[len(mark):], true
				break
			}
		}
		switch {
		case marked:
		case strings.HasPrefix(text, "ab"):
			ids, text = append(ids, idMerged), text[2:]
		default:
			ids, text = append(ids, int32(text[0])), text[1:]
		}
	}
	return ids
}

func (byteChat) Decode(ids []int32) string {
	var b []byte
	for _, id := range ids {
		switch id {
		case idStart:
			b = append(b, "<|start|>"...)
		case idEnd:
			b = append(b, "<|end|>"...)
		case idMerged:
			b = append(b, "ab"...)
		default:
			b = append(b, byte(id))
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (byteChat) Calls() *CallFormat { return hermesCalls }
func (byteChat) Special() []string  { return []string{"<|start|>", "<|end|>"} }
func (byteChat) Stop() []int32      { return []int32{idEnd} }

// bytesOf encodes byte by byte, without the merge: a tokenisation that Encode
// would not choose.
func bytesOf(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	return ids
}

// scriptEngine answers each session's turns from a script and remembers every
// request.
type scriptEngine struct {
	mu       sync.Mutex
	version  uint64
	adapter  *model.Adapter
	maxLen   int
	script   func(turn int, req GenerateRequest) (Generation, error)
	turns    map[string]int
	requests []GenerateRequest
	ended    []string
	onPolicy func(uint64) error
}

func newScript(turns ...string) *scriptEngine {
	return scripted(func(turn int, _ GenerateRequest) (Generation, error) {
		if turn >= len(turns) {
			return Generation{}, fmt.Errorf("no turn %d in the script", turn)
		}
		return said(turns[turn]), nil
	})
}

func scripted(f func(turn int, req GenerateRequest) (Generation, error)) *scriptEngine {
	return &scriptEngine{maxLen: 1 << 20, script: f, turns: map[string]int{}}
}

// said is a completed turn, byte by byte, under whatever version is served.
func said(text string) Generation {
	return saidIDs(append(bytesOf(text), idEnd))
}

func saidIDs(ids []int32) Generation {
	g := Generation{IDs: ids, Logprobs: make([]float32, len(ids))}
	for i := range g.Logprobs {
		g.Logprobs[i] = -float32(i+1) / 64
	}
	return g
}

// cut is a turn that ran into its limit.
func cut(text string) Generation {
	g := saidIDs(bytesOf(text))
	g.Finish = FinishLength
	return g
}

func (e *scriptEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	e.mu.Lock()
	turn, version := e.turns[req.Session], e.version
	e.turns[req.Session]++
	req.Prompt = slices.Clone(req.Prompt)
	e.requests = append(e.requests, req)
	e.mu.Unlock()
	if version < req.MinVersion || req.Version != nil && *req.Version != version {
		return Generation{}, fmt.Errorf("%w: serving %d", ErrVersion, version)
	}
	if ctx.Err() != nil {
		return Generation{}, context.Cause(ctx)
	}
	gen, err := e.script(turn, req)
	if err == nil && gen.Versions == nil {
		gen.Versions = []VersionRun{{End: len(gen.IDs), Version: version}}
	}
	return gen, err
}

func (e *scriptEngine) SetPolicy(v uint64, a *model.Adapter) error {
	if e.onPolicy != nil {
		if err := e.onPolicy(v); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.version, e.adapter = v, a
	return nil
}

func (e *scriptEngine) Version() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version
}

func (e *scriptEngine) EndSession(s string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = append(e.ended, s)
}
func (e *scriptEngine) MaxLen() int  { return e.maxLen }
func (e *scriptEngine) Close() error { return nil }

// envFunc is an Env made of one function.
type envFunc func(ctx context.Context, c tool.Call) (string, error)

func (f envFunc) Call(ctx context.Context, c tool.Call) (string, error) { return f(ctx, c) }
