package learner

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
)

// ErrCheckpoint marks bytes that are no intact checkpoint, or one that belongs
// to another base, dataset, run or adapter shape.
var ErrCheckpoint = errors.New("learner: checkpoint")

// Checkpoint is a learner's whole state after a step. Everything random is a
// pure function of (Seed, Epoch, Cursor), so those are the RNG state.
type Checkpoint struct {
	Identity
	Config  Config `json:"config"`
	Step    uint64 `json:"step"`
	Version uint64 `json:"version"`
	OptStep uint64 `json:"optimizer_step"` // AdamW's t
	Lease   uint64 `json:"lease"`          // last lease trained; 0 = none
	Seed    uint64 `json:"seed"`
	Epoch   uint64 `json:"epoch"`  // offline: epochs finished
	Cursor  uint64 `json:"cursor"` // offline: rows of this epoch consumed
	// BCO is bco's running reward shift.
	BCO *preference.BCOState `json:"bco,omitempty"`
	// Entropy is the state of use_adaptive_entropy; nil without.
	Entropy *EntropyState `json:"entropy,omitempty"`
	// Critic is ppo's.
	Critic *CriticState `json:"critic_state,omitempty"`

	Params []float32 `json:"-"`
	M      []float32 `json:"-"`
	V      []float32 `json:"-"`
	// Start are the frozen start parameters.
	Start []float32 `json:"-"`
	// Moving is a moving reference that has moved; nil otherwise.
	Moving []float32 `json:"-"`
}

// Layout of an encoded checkpoint, integers little-endian:
//
//	magic "SKEINCP1" | u32 header length | header (JSON) |
//	f32 params | m | v | start, each of header.count, start only if header.start |
//	f32 moving reference of header.count, only if header.moved |
//	f32 critic's params | m | v, each of header.critic_count, if it has a critic |
//	32 bytes BLAKE3 of everything before
const checkpointMagic = "SKEINCP1"

type header struct {
	Checkpoint
	Count       int  `json:"count"`
	CriticCount int  `json:"critic_count,omitempty"`
	HasStart    bool `json:"start"` // false: the start equals the parameters (step 0)
	HasMoved    bool `json:"moved,omitempty"`
}

// Encode gives the checkpoint as one blob. Equal checkpoints give equal bytes.
func (c *Checkpoint) Encode() ([]byte, error) {
	h := header{Checkpoint: *c, Count: len(c.Params), HasStart: !slices.Equal(c.Params, c.Start), HasMoved: c.Moving != nil}
	if len(c.M) != h.Count || len(c.V) != h.Count || len(c.Start) != h.Count {
		return nil, fmt.Errorf("%w: %d parameters but %d, %d moments and %d start parameters", ErrCheckpoint, h.Count, len(c.M), len(c.V), len(c.Start))
	}
	if h.HasMoved && len(c.Moving) != h.Count {
		return nil, fmt.Errorf("%w: %d parameters but %d of the moving reference", ErrCheckpoint, h.Count, len(c.Moving))
	}
	if k := h.Critic; k != nil {
		if h.CriticCount = len(k.Params); len(k.M) != h.CriticCount || len(k.V) != h.CriticCount {
			return nil, fmt.Errorf("%w: %d critic parameters but %d, %d moments", ErrCheckpoint, h.CriticCount, len(k.M), len(k.V))
		}
	}
	js, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrCheckpoint, err)
	}
	out := make([]byte, 0, len(checkpointMagic)+4+len(js)+20*h.Count+12*h.CriticCount+32)
	out = append(out, checkpointMagic...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(js)))
	out = append(out, js...)
	for _, v := range h.vectors() {
		for _, x := range *v.data {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		}
	}
	sum := blake3.Sum256(out)
	return append(out, sum[:]...), nil
}

// vector is a tensor of a checkpoint and its length.
type vector struct {
	data *[]float32
	n    int
}

// vectors are the tensors present, in order.
func (h *header) vectors() []vector {
	v := []vector{{&h.Params, h.Count}, {&h.M, h.Count}, {&h.V, h.Count}}
	if h.HasStart {
		v = append(v, vector{&h.Start, h.Count})
	}
	if h.HasMoved {
		v = append(v, vector{&h.Moving, h.Count})
	}
	if k := h.Critic; k != nil {
		v = append(v, vector{&k.Params, h.CriticCount}, vector{&k.M, h.CriticCount}, vector{&k.V, h.CriticCount})
	}
	return v
}

// DecodeCheckpoint reads what Encode wrote. Errors wrap [ErrCheckpoint].
func DecodeCheckpoint(data []byte) (*Checkpoint, error) {
	bad := func(format string, a ...any) (*Checkpoint, error) {
		return nil, fmt.Errorf("%w: %s", ErrCheckpoint, fmt.Sprintf(format, a...))
	}
	head := len(checkpointMagic) + 4
	if len(data) < head+32 || string(data[:len(checkpointMagic)]) != checkpointMagic {
		return bad("%d bytes that do not start with %q", len(data), checkpointMagic)
	}
	body := data[:len(data)-32]
	if sum := blake3.Sum256(body); !bytes.Equal(sum[:], data[len(body):]) {
		return bad("its digest does not match: %d bytes, cut short or damaged", len(data))
	}
	n := uint64(binary.LittleEndian.Uint32(data[len(checkpointMagic):]))
	if n > uint64(len(body)-head) {
		return bad("header of %d bytes in %d", n, len(body))
	}
	var h header
	dec := json.NewDecoder(bytes.NewReader(body[head : head+int(n)]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil {
		return bad("header: %v (written by another version?)", err)
	}
	rest := body[head+int(n):]
	vs := h.vectors()
	left := uint64(len(rest))
	for _, v := range vs {
		if v.n < 0 || uint64(v.n) > left/4 {
			return bad("%d tensor bytes for %d vectors of %d and %d numbers", len(rest), len(vs), h.Count, h.CriticCount)
		}
		left -= 4 * uint64(v.n)
	}
	if left != 0 {
		return bad("%d tensor bytes for %d vectors of %d and %d numbers", len(rest), len(vs), h.Count, h.CriticCount)
	}
	for _, v := range vs {
		*v.data = make([]float32, v.n)
		for i := range *v.data {
			x := math.Float32frombits(binary.LittleEndian.Uint32(rest[4*i:]))
			if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
				return bad("number %d is %v", i, x)
			}
			(*v.data)[i] = x
		}
		rest = rest[4*v.n:]
	}
	c := h.Checkpoint
	if !h.HasStart {
		c.Start = slices.Clone(c.Params)
	}
	return &c, nil
}

// Digest names the checkpoint's bytes: "blake3:<hex>".
func (c *Checkpoint) Digest() (string, error) {
	data, err := c.Encode()
	if err != nil {
		return "", err
	}
	return model.BlobDigest(data), nil
}

// Checkpoint is the learner's state (copied).
func (l *Learner) Checkpoint() *Checkpoint {
	o := l.opt.clone()
	var bco *preference.BCOState
	if l.cfg.rowLoss() == BCO {
		state := l.bco
		bco = &state
	}
	var moving []float32
	if l.cfg.Reference == ReferenceMoving && !slices.Equal(l.moving, l.start) {
		moving = slices.Clone(l.moving)
	}
	var entropy *EntropyState
	if l.cfg.UseAdaptiveEntropy {
		state := l.entropy
		entropy = &state
	}
	return &Checkpoint{
		Moving: moving, Entropy: entropy, BCO: bco, Critic: l.critic.state(),
		Identity: l.ident, Config: l.cfg, Step: l.step, Version: l.version, OptStep: o.T, Lease: l.lease, Seed: l.cfg.Seed, Epoch: l.epoch, Cursor: l.cursor,
		Params: slices.Clone(l.params), M: o.M, V: o.V, Start: slices.Clone(l.start),
	}
}

// Restore continues from a checkpoint. It refuses one of another base, adapter
// shape, run or dataset, naming both. Configuration may differ: the caller's
// counts (compare with DiffConfig to tell the user).
func (l *Learner) Restore(c *Checkpoint) error {
	if err := c.Fits(l.ident); err != nil {
		return err
	}
	if c.Cursor > 0 && c.Seed != l.cfg.Seed {
		return fmt.Errorf("%w: it stands %d rows into an epoch shuffled with seed %d, this run has seed %d; keep the seed", ErrCheckpoint, c.Cursor, c.Seed, l.cfg.Seed)
	}
	n := l.tr.Layout().Size()
	if len(c.Params) != n || len(c.M) != n || len(c.V) != n || len(c.Start) != n || c.Moving != nil && len(c.Moving) != n {
		return fmt.Errorf("%w: it has %d parameters, the trainer %d", ErrCheckpoint, len(c.Params), n)
	}
	if err := l.critic.fits(c.Critic); err != nil {
		return err
	}
	l.critic.restore(c.Critic)
	l.params, l.start = slices.Clone(c.Params), slices.Clone(c.Start)
	if l.moving = slices.Clone(c.Moving); l.moving == nil {
		l.moving = slices.Clone(c.Start)
	}
	l.entropy = EntropyState{Coef: l.cfg.EntropyCoef}
	if c.Entropy != nil {
		l.entropy = *c.Entropy
	}
	l.opt = AdamW{M: slices.Clone(c.M), V: slices.Clone(c.V), T: c.OptStep}
	l.step, l.version, l.lease, l.epoch, l.cursor = c.Step, c.Version, c.Lease, c.Epoch, c.Cursor
	l.bco = preference.BCOState{}
	if c.BCO != nil {
		l.bco = *c.BCO
	}
	return nil
}

// Fits refuses a checkpoint of another base, adapter shape, run or dataset.
func (c *Checkpoint) Fits(want Identity) error {
	var errs []error
	differ := func(field, got, want, remedy string) {
		if got != want {
			errs = append(errs, fmt.Errorf("%w: %s is %q, this run has %q; %s", ErrCheckpoint, field, got, want, remedy))
		}
	}
	differ("run", c.Run, want.Run, "resume under the same run name")
	differ("base", c.Base, want.Base, "load the model it was trained on")
	differ("dataset", c.Dataset.Name, want.Dataset.Name, "use the same task source, or start a new run from its adapter")
	differ("dataset digest", c.Dataset.Digest, want.Dataset.Digest, "the tasks or rows, or the settings of their order, have changed; use the same, or start a new run from its adapter")
	if c.Full != want.Full || !c.Full && !c.LoRA.Equal(want.LoRA) {
		errs = append(errs, fmt.Errorf("%w: adapter is %+v (full %v), this run has %+v (full %v); use the same lora settings", ErrCheckpoint, c.LoRA, c.Full, want.LoRA, want.Full))
	}
	if a, b := c.Identity.Critic, want.Critic; (a == nil) != (b == nil) || a != nil && !a.Equal(*b) {
		errs = append(errs, fmt.Errorf("%w: critic is %+v, this run has %+v (nil: none); use the same algorithm and critic settings", ErrCheckpoint, a, b))
	}
	return errors.Join(errs...)
}

// DiffConfig lists the settings that differ, as "key: old -> new", sorted.
func DiffConfig(old, now Config) []string {
	a, b := flatten(old), flatten(now)
	var out []string
	for k := range b {
		if _, ok := a[k]; !ok {
			a[k] = "unset"
		}
	}
	for k, v := range a {
		w, ok := b[k]
		if !ok {
			w = "unset"
		}
		if v != w {
			out = append(out, k+": "+v+" -> "+w)
		}
	}
	slices.Sort(out)
	return out
}

// flatten gives a configuration's keys with their JSON values.
func flatten(c Config) map[string]string {
	js, err := json.Marshal(c)
	if err != nil {
		return map[string]string{"config": err.Error()} // a non-finite number, which Validate refuses
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(js, &m); err != nil {
		return map[string]string{"config": err.Error()}
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}

// Digest names the configuration: "blake3:<hex>" of its canonical JSON.
func (c Config) Digest() string {
	js, err := json.Marshal(c)
	if err != nil {
		return "invalid: " + err.Error()
	}
	return model.BlobDigest(js)
}
