package rollout

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// loadPolicy fetches a policy's adapter and verifies it (P6): the blob's bytes
// and the decoded adapter have the digest the registry holds, it was trained on
// this base, and it has this model's shape.
func loadPolicy(ctx context.Context, get func(context.Context, replay.Policy) ([]byte, error), base *model.Model, p replay.Policy) (loadedPolicy, error) {
	out := loadedPolicy{version: p.Version, digest: p.Adapter}
	if p.Adapter == "" {
		return out, nil
	}
	fail := func(err error) (loadedPolicy, error) {
		return loadedPolicy{}, fmt.Errorf("policy version %d, adapter %s: %w", p.Version, p.Adapter, err)
	}
	blob, err := get(ctx, p)
	if err != nil {
		return fail(err)
	}
	if got := model.BlobDigest(blob); got != p.Adapter {
		return fail(fmt.Errorf("the blob's digest is %s; refusing to serve it", got))
	}
	a, err := model.DecodeAdapter(blob)
	if err != nil {
		return fail(err)
	}
	if got := a.Digest(); got != p.Adapter {
		return fail(fmt.Errorf("the loaded adapter's digest is %s; refusing to serve it", got))
	}
	if err := a.CheckBase(base.Digest); err != nil {
		return fail(err)
	}
	if err := a.Check(base.Config); err != nil {
		return fail(err)
	}
	out.adapter = a
	return out, nil
}

// prober checks that an adapter acts: its greedy logprobs on a short prompt
// differ from the base's. Weight synchronisation that silently changes nothing
// looks like staleness otherwise.
type prober struct {
	engine Engine
	config model.Config
	// weights of the base
	weights *model.Weights
	prompt  []int32
	stop    []int32
	base    Generation
	floor   float64 // of a LoRA B that must show
}

// probeFloor is the size of a LoRA B that moves float32 logprobs. An engine whose
// logprobs are coarser says its own (ProbeFloor).
const probeFloor = 1e-5

// probePrompt bounds the probe, in tokens.
const (
	probePrompt = 32
	probeTokens = 4
)

// newProber records the base's answer; the engine must serve version without an
// adapter.
func newProber(ctx context.Context, engine Engine, base *model.Model, chat Chat, opening []Message) (*prober, error) {
	t, err := newTranscript(chat, nil, opening)
	if err != nil {
		return nil, err
	}
	p := &prober{engine: engine, config: base.Config, weights: base.Weights, prompt: t.ids[:min(len(t.ids), probePrompt, max(engine.MaxLen()-probeTokens, 1))], stop: chat.Stop(), floor: probeFloor}
	if coarse, ok := engine.(interface{ ProbeFloor() float64 }); ok {
		p.floor = coarse.ProbeFloor()
	}
	p.base, err = p.ask(ctx, engine.Version())
	return p, err
}

func (p *prober) ask(ctx context.Context, version uint64) (Generation, error) {
	defer p.engine.EndSession("probe")
	return p.engine.Generate(ctx, GenerateRequest{
		Session: "probe", Prompt: p.prompt, MaxNew: min(probeTokens, p.engine.MaxLen()-len(p.prompt)), Stop: p.stop, Version: &version,
	})
}

// check is the gate's probe. An adapter too small to move a float32 logprob,
// such as a fresh one whose B is zero, proves nothing and passes.
func (p *prober) check(ctx context.Context, l loadedPolicy) error {
	if l.adapter == nil || !p.acts(l.adapter) {
		return nil
	}
	got, err := p.ask(ctx, l.version)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if len(got.IDs) != len(p.base.IDs) {
		return nil
	}
	for i := range got.IDs {
		if got.IDs[i] != p.base.IDs[i] || got.Logprobs[i] != p.base.Logprobs[i] {
			return nil
		}
	}
	return fmt.Errorf("%w: its greedy logprobs on the probe equal the base's", errProbe)
}

// acts says whether some B of the adapter, or some change of a weight, is large
// enough to be seen.
func (p *prober) acts(a *model.Adapter) bool {
	if a.Full {
		base, err := p.weights.Flatten(p.config)
		if err != nil || len(base) != len(a.Params) {
			return true
		}
		for i, v := range a.Params {
			if math.Abs(float64(v-base[i])) > 1e-4 {
				return true
			}
		}
		return false
	}
	layout, err := model.LoRALayout(p.config, a.LoRA)
	if err != nil || layout.Size() != len(a.Params) {
		return true
	}
	for _, t := range layout {
		if !strings.Contains(t.Name, "lora_B") {
			continue
		}
		for _, v := range a.Params[t.Offset : t.Offset+t.Len()] {
			if math.Abs(float64(v)) > p.floor {
				return true
			}
		}
	}
	return false
}
