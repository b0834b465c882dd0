package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/skein-rl/skein/model"
)

// adapterName names weights: equal names are equal weights, whoever loads them.
func adapterName(run string, version uint64, a *model.Adapter) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, run)
	digest := a.Digest()
	if _, hex, ok := strings.Cut(digest, ":"); ok {
		digest = hex
	}
	return fmt.Sprintf("skein-%s-v%d-%s", clean, version, digest[:min(16, len(digest))])
}

type loadBody struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

type unloadBody struct {
	Name string `json:"lora_name"`
}

// follows unloads what nobody has: a server that may load says that it does not
// know the name.
func (p completions) follows(ctx context.Context) error {
	if p.s.cfg.Kind == OpenAI {
		return fmt.Errorf("%w: an openai server loads no adapters: name it vllm if it does; it serves evaluations of the base", ErrNoFollow)
	}
	if p.s.cfg.Adapters == "" {
		return fmt.Errorf("%w: no folder for adapters: give adapters=FOLDER, one that the server can read", ErrNoFollow)
	}
	const nobody = "skein-nobody"
	err := p.s.call(ctx, "/v1/unload_lora_adapter", unloadBody{nobody}, nil)
	var r *Refusal
	switch {
	case err == nil, errors.As(err, &r) && strings.Contains(r.Message, nobody):
		return nil
	case errors.As(err, &r) && r.Status < 500:
		return fmt.Errorf("%w: %w: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, skein serve with --adapter-root", ErrNoFollow, err)
	}
	return err
}

// load writes the adapter where the server sees it, verifies what was written,
// has it loaded, and verifies that it is listed.
func (p completions) load(ctx context.Context, t target, base *model.Model) (target, error) {
	there, err := p.write(t, base)
	if err != nil {
		return t, err
	}
	loadErr := p.s.call(ctx, "/v1/load_lora_adapter", loadBody{t.name, there}, nil)
	var r *Refusal
	if loadErr != nil && !(errors.As(loadErr, &r) && r.Status < 500) {
		return t, loadErr
	}
	// A refusal may only mean that it is loaded: by another worker, or by an
	// attempt whose answer was lost.
	cards, err := p.cards(ctx)
	if err != nil {
		return t, errors.Join(loadErr, err)
	}
	for _, c := range cards {
		if c.ID != t.name {
			continue
		}
		if c.Digest != "" && p.s.cfg.Kind == Skein && c.Digest != t.adapter.Digest() {
			return t, fmt.Errorf("engine: adapter %s: the server loaded %s from %s, the registry holds %s", t.name, c.Digest, there, t.adapter.Digest())
		}
		return t, nil
	}
	if loadErr != nil {
		return t, errors.Join(loadErr, os.RemoveAll(filepath.Join(p.s.cfg.Adapters, t.name)))
	}
	return t, fmt.Errorf("%w: adapter %s was loaded, it says, and is not listed by /v1/models", ErrAnswer, t.name)
}

// write puts the adapter in PEFT's layout below Adapters and returns the folder
// as the server sees it.
func (p completions) write(t target, base *model.Model) (there string, err error) {
	here := filepath.Join(p.s.cfg.Adapters, t.name)
	if err := t.adapter.Save(here, base.Config, base.Name); err != nil {
		return "", fmt.Errorf("engine: adapter %s: %w", t.name, err)
	}
	got, err := model.LoadAdapter(here, base.Config)
	if err != nil {
		return "", fmt.Errorf("engine: adapter %s as written: %w", t.name, err)
	}
	if got.Digest() != t.adapter.Digest() {
		return "", fmt.Errorf("engine: adapter %s: what was written to %s has digest %s, the registry holds %s", t.name, here, got.Digest(), t.adapter.Digest())
	}
	if p.s.cfg.AdaptersThere != "" {
		return path.Join(p.s.cfg.AdaptersThere, t.name), nil
	}
	return filepath.Abs(here)
}

// unload forgets an adapter there and here; one that is gone already is no error.
func (p completions) unload(ctx context.Context, t target) error {
	err := p.s.call(ctx, "/v1/unload_lora_adapter", unloadBody{t.name}, nil)
	var r *Refusal
	if err != nil && !(errors.As(err, &r) && (r.Status == http.StatusNotFound || r.Status == http.StatusBadRequest)) {
		return err
	}
	return os.RemoveAll(filepath.Join(p.s.cfg.Adapters, t.name))
}
