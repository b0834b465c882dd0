package model

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
)

// ErrAdapter marks an adapter that doesn't fit its model: another base, another
// shape, or a PEFT feature that is not implemented.
var ErrAdapter = errors.New("model: adapter does not fit")

// scale is the factor on B(Ax): alpha/r (Hu et al. 2021, arXiv:2106.09685,
// section 4.1), or alpha/sqrt(r) when RSLoRA (Kalajdzievski 2023,
// arXiv:2312.03732, equation 5).
func (l LoRAConfig) scale(rank int, alpha float64) float64 {
	if l.RSLoRA {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// maxRank bounds a rank.
const maxRank = 4096

func checkRank(r int) error {
	if r < 1 || r > maxRank {
		return fmt.Errorf("rank is %d, want 1 to %d", r, maxRank)
	}
	return nil
}

func checkAlpha(a float64) error {
	if !(a > 0) || math.IsInf(a, 0) {
		return fmt.Errorf("alpha is %v, want a finite number > 0", a)
	}
	return nil
}

// patterns compiles both patterns.
func (l LoRAConfig) patterns() (rank *compiled[int], alpha *compiled[float64], errs []error) {
	rank, err := l.RankPattern.compile(checkRank)
	if err != nil {
		errs = append(errs, fmt.Errorf("rank_pattern: %w", err))
	}
	if alpha, err = l.AlphaPattern.compile(checkAlpha); err != nil {
		errs = append(errs, fmt.Errorf("alpha_pattern: %w", err))
	}
	return rank, alpha, errs
}

// Validate reports every problem by field and value.
func (l LoRAConfig) Validate() error {
	var errs []error
	for _, err := range []error{checkRank(l.Rank), checkAlpha(l.Alpha)} {
		if err != nil {
			errs = append(errs, err)
		}
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
	_, _, bad := l.patterns()
	if err := errors.Join(append(errs, bad...)...); err != nil {
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

// String says the shape in a few words.
func (l LoRAConfig) String() string {
	s := fmt.Sprintf("rank %d, alpha %g, rslora %v on %v", l.Rank, l.Alpha, l.RSLoRA, l.Targets)
	if len(l.RankPattern) > 0 {
		s += fmt.Sprintf(", rank_pattern {%v}", l.RankPattern)
	}
	if len(l.AlphaPattern) > 0 {
		s += fmt.Sprintf(", alpha_pattern {%v}", l.AlphaPattern)
	}
	return s
}

// Equal reports whether two configurations say the same; the order of Targets is
// irrelevant, that of patterns is not.
func (l LoRAConfig) Equal(o LoRAConfig) bool {
	a, b := slices.Clone(l.Targets), slices.Clone(o.Targets)
	slices.Sort(a)
	slices.Sort(b)
	return l.Rank == o.Rank && l.Alpha == o.Alpha && l.RSLoRA == o.RSLoRA && slices.Equal(a, b) &&
		slices.Equal(l.RankPattern, o.RankPattern) && slices.Equal(l.AlphaPattern, o.AlphaPattern)
}

func (l LoRAConfig) has(target string) bool { return slices.Contains(l.Targets, target) }

// LoRAModule is one adapted matrix of a model.
type LoRAModule struct {
	Layer   int
	Name    string // of the projection, such as q_proj
	Path    string // in the model, such as model.layers.0.self_attn.q_proj
	Out, In int    // of the base's matrix
	Rank    int    // its own, as Alpha is
	Alpha   float64
	Scale   float64 // of B(Ax)
	// A and B are the offsets of A [Rank, In] and B [Out, Rank] in the adapter's
	// flat vector, one after the other.
	A, B int
}

// LoRAModules lists what an adapter of this shape adapts, in the order of its
// flat vector: layer by layer, projections in the order of Config.Projections
// (whatever the order of lora.Targets), A then B. Errors: a target that the
// architecture does not have, or a pattern's key that matches no module.
func LoRAModules(c Config, lora LoRAConfig) ([]LoRAModule, error) {
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
	out, ranks, alphas := lora.modules(c, func(path string) string { return path })
	var errs []error
	for _, x := range []struct {
		field string
		keys  []string
	}{{"rank_pattern", ranks}, {"alpha_pattern", alphas}} {
		for _, key := range x.keys {
			errs = append(errs, fmt.Errorf("model: lora: %s: %q matches none of the %d adapted modules (%s to %s): name the end of one, such as %q, or leave it out",
				x.field, key, len(out), out[0].Path, out[len(out)-1].Path, out[0].Name))
		}
	}
	return out, errors.Join(errs...)
}

// modules is LoRAModules of a checked configuration, whose patterns are matched
// on the names that a module has elsewhere; ranks and alphas are the keys that
// match nothing.
func (l LoRAConfig) modules(c Config, name func(path string) string) (out []LoRAModule, ranks, alphas []string) {
	rank, alpha, _ := l.patterns()
	at := 0
	for i := range c.NumHiddenLayers {
		for _, p := range c.projections() {
			if !l.has(p.name) {
				continue
			}
			m := LoRAModule{Layer: i, Name: p.name, Path: "model.layers." + strconv.Itoa(i) + "." + p.block + "." + p.name, Out: p.out(c), In: p.in(c)}
			known := name(m.Path)
			m.Rank = rank.of(known, l.Rank)
			m.Alpha = alpha.of(known, l.Alpha)
			m.Scale = l.scale(m.Rank, m.Alpha)
			m.A, m.B = at, at+m.Rank*m.In
			at = m.B + m.Out*m.Rank
			out = append(out, m)
		}
	}
	return out, rank.unused(), alpha.unused()
}

// renamed is the configuration of an adapter whose files have other names for the
// modules: patterns that matched those are spelled out in ours, keys that match
// no adapted module, which PEFT ignores, are gone.
func (l LoRAConfig) renamed(c Config, name func(path string) string) LoRAConfig {
	modules, ranks, alphas := l.modules(c, name)
	l.RankPattern, l.AlphaPattern = l.RankPattern.without(ranks), l.AlphaPattern.without(alphas)
	if !slices.ContainsFunc(modules, func(m LoRAModule) bool { return name(m.Path) != m.Path }) {
		return l
	}
	l.RankPattern, l.AlphaPattern = nil, nil
	for _, m := range modules {
		if m.Rank != l.Rank {
			l.RankPattern = append(l.RankPattern, PatternValue[int]{regexp.QuoteMeta(m.Path), m.Rank})
		}
		if m.Alpha != l.Alpha {
			l.AlphaPattern = append(l.AlphaPattern, PatternValue[float64]{regexp.QuoteMeta(m.Path), m.Alpha})
		}
	}
	return l
}

// peftPrefix is what PEFT puts before a module's name.
const peftPrefix = "base_model.model."

// LoRALayout names the tensors in the adapter's flat vector, in the order of
// LoRAModules, as PEFT does.
func LoRALayout(c Config, lora LoRAConfig) (Layout, error) {
	modules, err := LoRAModules(c, lora)
	if err != nil {
		return nil, err
	}
	var out Layout
	for _, m := range modules {
		out = append(out,
			Param{Name: peftPrefix + m.Path + ".lora_A.weight", Shape: []int{m.Rank, m.In}, Offset: m.A},
			Param{Name: peftPrefix + m.Path + ".lora_B.weight", Shape: []int{m.Out, m.Rank}, Offset: m.B})
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

// FullOf are the base's weights as a full adapter to train from; they are loaded.
func FullOf(m *Model) (*Adapter, error) {
	flat, err := m.Weights.Flatten(m.Config)
	return &Adapter{Full: true, BaseDigest: m.Digest, Params: flat}, err
}

// Layout names the tensors in Params.
func (a *Adapter) Layout(c Config) (Layout, error) {
	if a.Full {
		return FullLayout(c), nil
	}
	return LoRALayout(c, a.LoRA)
}

// shape says in a few words what Params are.
func (a *Adapter) shape() string {
	if a.Full {
		return "all weights"
	}
	return a.LoRA.String()
}

// Check reports whether the adapter has the shape that the configuration wants
// and holds finite numbers.
func (a *Adapter) Check(c Config) error {
	layout, err := a.Layout(c)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAdapter, err)
	}
	if len(a.Params) != layout.Size() {
		return fmt.Errorf("%w: it has %d numbers, %s of this model wants %d (made for another base?)", ErrAdapter, len(a.Params), a.shape(), layout.Size())
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
