package model

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
)

// ErrAdapter marks an adapter that doesn't fit its model: another base, another
// shape, or a PEFT feature that is not implemented.
var ErrAdapter = errors.New("model: adapter does not fit")

// Scale is the factor on B(Ax): alpha/r (Hu et al. 2021, arXiv:2106.09685,
// section 4.1), or alpha/sqrt(r) when RSLoRA (Kalajdzievski 2023,
// arXiv:2312.03732, equation 5).
func (l LoRAConfig) Scale() float64 {
	if l.RSLoRA {
		return l.Alpha / math.Sqrt(float64(l.Rank))
	}
	return l.Alpha / float64(l.Rank)
}

// Validate reports every problem by field and value.
func (l LoRAConfig) Validate() error {
	var errs []error
	if l.Rank < 1 || l.Rank > 4096 {
		errs = append(errs, fmt.Errorf("rank is %d, want 1 to 4096", l.Rank))
	}
	if !(l.Alpha > 0) || math.IsInf(l.Alpha, 0) {
		errs = append(errs, fmt.Errorf("alpha is %v, want a finite number > 0", l.Alpha))
	}
	if len(l.Targets) == 0 {
		errs = append(errs, fmt.Errorf("targets is empty, want %q or at least one of %v", AllLinear, knownProjections()))
	}
	for i, t := range l.Targets {
		switch {
		case t == AllLinear && len(l.Targets) > 1:
			errs = append(errs, fmt.Errorf("targets: %q stands with others, want it alone", t))
		case t != AllLinear && !slices.Contains(knownProjections(), t):
			errs = append(errs, fmt.Errorf("targets: unknown projection %q (have %q, %v)", t, AllLinear, knownProjections()))
		}
		if slices.Contains(l.Targets[:i], t) {
			errs = append(errs, fmt.Errorf("targets: %q is listed twice", t))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("model: lora: %w", err)
	}
	return nil
}

// AllLinear as the only target means every projection of the architecture that
// can be adapted; see Resolve.
const AllLinear = "all-linear"

// Resolve replaces AllLinear by what it means for a model, Config.Projections.
// Everything that needs a layout wants a resolved configuration.
func (l LoRAConfig) Resolve(c Config) LoRAConfig {
	if slices.Equal(l.Targets, []string{AllLinear}) {
		l.Targets = c.Projections()
	}
	return l
}

// knownProjections are those of all architectures, in their order in a layer.
func knownProjections() []string {
	var out []string
	for _, p := range slices.Concat(fusedProjections[:1], plainProjections[:4], fusedProjections[2:3], plainProjections[4:]) {
		out = append(out, p.name)
	}
	return out
}

// Equal reports whether two configurations mean the same adapter; the order of
// Targets is irrelevant.
func (l LoRAConfig) Equal(o LoRAConfig) bool {
	a, b := slices.Clone(l.Targets), slices.Clone(o.Targets)
	slices.Sort(a)
	slices.Sort(b)
	return l.Rank == o.Rank && l.Alpha == o.Alpha && l.RSLoRA == o.RSLoRA && slices.Equal(a, b)
}

func (l LoRAConfig) has(target string) bool { return slices.Contains(l.Targets, target) }

// LoRALayout is the order of an adapter's tensors in its flat vector: layer by
// layer, projections in the order of Config.Projections (whatever the order of
// lora.Targets), A [r, in] then B [out, r], under their PEFT names. A target that
// the architecture does not have is an error (see Config.Projections).
func LoRALayout(c Config, lora LoRAConfig) (Layout, error) {
	if err := lora.Validate(); err != nil {
		return nil, err
	}
	for _, t := range lora.Targets {
		if t == AllLinear {
			return nil, fmt.Errorf("model: lora: targets is %q: resolve it for the model first (LoRAConfig.Resolve)", t)
		}
		if have := c.Projections(); !slices.Contains(have, t) {
			return nil, fmt.Errorf("model: lora: targets: this model (%s) has no %q that can be adapted (it has %v)", c.ModelType, t, have)
		}
	}
	var out Layout
	at := 0
	add := func(name string, rows, cols int) {
		out = append(out, Param{Name: name, Shape: []int{rows, cols}, Offset: at})
		at += rows * cols
	}
	for i := range c.NumHiddenLayers {
		for _, p := range c.projections() {
			if !lora.has(p.name) {
				continue
			}
			pre := "base_model.model.model.layers." + strconv.Itoa(i) + "." + p.block + "." + p.name
			add(pre+".lora_A.weight", lora.Rank, p.in(c))
			add(pre+".lora_B.weight", p.out(c), lora.Rank)
		}
	}
	return out, nil
}

// NewAdapter makes the adapter that training starts from, as PEFT does: A from
// kaiming_uniform(a=sqrt(5)), which is U(-1/sqrt(in), 1/sqrt(in)), and B zero,
// so that it computes what the base computes. Equal seeds give equal adapters.
// lora is resolved for c.
func NewAdapter(c Config, lora LoRAConfig, baseDigest string, seed uint64) (*Adapter, error) {
	lora = lora.Resolve(c)
	layout, err := LoRALayout(c, lora)
	if err != nil {
		return nil, err
	}
	a := &Adapter{LoRA: lora, BaseDigest: baseDigest, Params: make([]float32, layout.Size())}
	a.LoRA.Targets = slices.Clone(lora.Targets)
	rng := rand.New(rand.NewPCG(seed, 0x6c6f7261)) // "lora"
	for i := 0; i < len(layout); i += 2 {
		p := layout[i] // an A; the B after it stays zero
		bound := 1 / math.Sqrt(float64(p.Shape[1]))
		for j := range p.Len() {
			a.Params[p.Offset+j] = float32((2*rng.Float64() - 1) * bound)
		}
	}
	return a, nil
}

// Check reports whether the adapter has the shape that the configuration wants
// and holds finite numbers.
func (a *Adapter) Check(c Config) error {
	layout, err := LoRALayout(c, a.LoRA)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAdapter, err)
	}
	if len(a.Params) != layout.Size() {
		return fmt.Errorf("%w: it has %d numbers, rank %d on %v of this model wants %d (made for another base?)", ErrAdapter, len(a.Params), a.LoRA.Rank, a.LoRA.Targets, layout.Size())
	}
	for _, p := range layout {
		for i, v := range a.Params[p.Offset : p.Offset+p.Len()] {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("%w: tensor %q element %d is %v", ErrAdapter, p.Name, i, v)
			}
		}
	}
	if a.Score != nil && len(a.Score) != c.HiddenSize {
		return fmt.Errorf("%w: its value head has %d weights, hidden_size is %d", ErrAdapter, len(a.Score), c.HiddenSize)
	}
	for i, v := range a.Score {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%w: the value head's weight %d is %v", ErrAdapter, i, v)
		}
	}
	return nil
}

// CheckBase reports whether the adapter was made for the base with this
// digest. An adapter without a recorded base (made by another tool) is refused
// too; whoever knows better sets BaseDigest.
func (a *Adapter) CheckBase(baseDigest string) error {
	switch a.BaseDigest {
	case baseDigest:
		return nil
	case "":
		return fmt.Errorf("%w: it records no base model; set its BaseDigest to %s if it was trained on this one", ErrAdapter, baseDigest)
	}
	return fmt.Errorf("%w: it was trained on base %s, the loaded model is %s; load that base or another adapter", ErrAdapter, a.BaseDigest, baseDigest)
}
