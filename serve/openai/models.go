package openai

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// adapterNames lists the adapters served. The caller holds the lock.
func (h *Handler) adapterNames() []string { return slices.Sorted(maps.Keys(h.adapters)) }

func (h *Handler) cards() []ModelCard {
	out := []ModelCard{{
		ID: h.cfg.Name, Object: "model", Created: h.started.Unix(), OwnedBy: "skein", Root: h.cfg.Model.Name,
		MaxLen: h.cfg.Engine.MaxLen(), Digest: h.cfg.Model.Digest,
	}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.adapterNames() {
		a := h.adapters[name]
		out = append(out, ModelCard{ID: name, Object: "model", Created: a.created, OwnedBy: "skein", Root: a.path, Parent: ptr(h.cfg.Name), MaxLen: h.cfg.Engine.MaxLen(), Digest: a.digest})
	}
	if e := h.cfg.Encoder; e != nil {
		out = append(out, ModelCard{ID: e.Name, Object: "model", Created: h.started.Unix(), OwnedBy: "skein", MaxLen: e.MaxTokens(), Dimension: e.Dim()})
	}
	return out
}

func (h *Handler) models(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, ModelList{Object: "list", Data: h.cards()})
}

func (h *Handler) model(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	for _, c := range h.cards() {
		if c.ID == name {
			return writeJSON(w, c)
		}
	}
	return &Error{Message: fmt.Sprintf("model %q is not served here", name), Type: "invalid_request_error", Status: http.StatusNotFound, Param: ptr("model"), Code: ptr("model_not_found")}
}

// loadAdapter is vLLM's call: the adapter (a PEFT directory below AdapterRoot)
// is served under its name, beside or, with load_inplace, instead of one of the
// same name.
func (h *Handler) loadAdapter(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name    string `json:"lora_name"`
		Path    string `json:"lora_path"`
		Inplace bool   `json:"load_inplace"`
		ID      *int   `json:"lora_int_id"`
		Base    string `json:"base_model_name"`
	}
	if err := decode(r, &req); err != nil {
		return err
	}
	if err := h.mayLoad(); err != nil {
		return err
	}
	if req.Name == "" || req.Path == "" {
		return badRequest("lora_name", "give lora_name and lora_path")
	}
	if req.Base != "" && req.Base != h.cfg.Name {
		return badRequest("base_model_name", "base_model_name is %q, this server has %q", req.Base, h.cfg.Name)
	}
	dir, err := h.inside(req.Path)
	if err != nil {
		return err
	}
	if err := h.LoadAdapter(req.Name, dir, req.Inplace); err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"status": "ok", "lora_name": req.Name})
}

// LoadAdapter serves the PEFT adapter of a directory under a name. An adapter
// that records no base was made by another tool: whoever loads it vouches that
// it belongs to this one.
func (h *Handler) LoadAdapter(name, dir string, replace bool) error {
	if name == "" || name == h.cfg.Name || h.cfg.Encoder != nil && name == h.cfg.Encoder.Name {
		return badRequest("lora_name", "lora_name %q is empty or the name of a served model; choose another", name)
	}
	h.loading.Lock()
	defer h.loading.Unlock()
	h.mu.Lock()
	_, taken := h.adapters[name]
	h.mu.Unlock()
	if taken && !replace {
		return badRequest("lora_name", "adapter %q is loaded already; unload it first or set load_inplace", name)
	}
	a, err := model.LoadAdapter(dir, h.cfg.Model.Config)
	if err != nil {
		return badRequest("lora_path", "%v", err)
	}
	if a.BaseDigest == "" {
		a.BaseDigest = h.cfg.Model.Digest
	}
	if err := a.CheckBase(h.cfg.Model.Digest); err != nil {
		return badRequest("lora_path", "%v", err)
	}
	version, err := h.cfg.Engine.LoadAdapter(name, a)
	if errors.Is(err, rollout.ErrAdapterPlaces) {
		return &Error{Message: err.Error(), Type: "invalid_request_error", Status: http.StatusConflict}
	} else if err != nil {
		return err
	}
	digest := a.Digest()
	h.mu.Lock()
	h.adapters[name] = loaded{path: dir, digest: digest, created: time.Now().Unix()}
	h.mu.Unlock()
	h.cfg.Log.Info("adapter loaded", "name", name, "path", dir, "version", version, "digest", digest)
	return nil
}

func (h *Handler) unloadAdapter(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string `json:"lora_name"`
		ID   *int   `json:"lora_int_id"`
	}
	if err := decode(r, &req); err != nil {
		return err
	}
	if err := h.mayLoad(); err != nil {
		return err
	}
	if req.Name == "" {
		return badRequest("lora_name", "give lora_name")
	}
	h.loading.Lock()
	defer h.loading.Unlock()
	if err := h.cfg.Engine.UnloadAdapter(req.Name); err != nil {
		return err
	}
	h.mu.Lock()
	delete(h.adapters, req.Name)
	h.mu.Unlock()
	h.cfg.Log.Info("adapter unloaded", "name", req.Name)
	return writeJSON(w, map[string]any{"status": "ok", "lora_name": req.Name})
}

func (h *Handler) mayLoad() error {
	if h.cfg.AdapterRoot == "" {
		return &Error{Message: "loading adapters is switched off; start the server with --adapter-root DIR", Type: "invalid_request_error", Status: http.StatusForbidden}
	}
	return nil
}

// inside resolves a path below AdapterRoot, links included.
func (h *Handler) inside(path string) (string, error) {
	root, err := filepath.EvalSymlinks(h.cfg.AdapterRoot)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return "", fmt.Errorf("adapter root: %w", err)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		var rel string
		if rel, err = filepath.Rel(root, real); err == nil && filepath.IsLocal(rel) {
			return real, nil
		}
	}
	return "", badRequest("lora_path", "lora_path %q is no folder below the server's adapter root", path)
}
