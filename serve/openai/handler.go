package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/embed"
	"github.com/skein-rl/skein/model/grammar"
	"github.com/skein-rl/skein/model/sample"
	"github.com/skein-rl/skein/rollout"
)

// Config is what a Handler serves. The engine's Text must be TextOf(Model.Tokenizer).
type Config struct {
	// Name is the served model's name, as requests give it.
	Name   string
	Model  *model.Model
	Engine *rollout.LocalEngine
	// Encoder answers /v1/embeddings; nil = not offered.
	Encoder *embed.Encoder
	// AdapterRoot is the folder that adapters may be loaded from; "" refuses
	// loading and unloading.
	AdapterRoot string
	// Timeout bounds one request; 0 means 10 minutes.
	Timeout time.Duration
	Log     *slog.Logger // nil = none
}

// Handler is the API under /v1. Safe for concurrent use.
type Handler struct {
	cfg      Config
	mux      *http.ServeMux
	started  time.Time
	programs programs
	format   *rollout.CallFormat // of the model's tool calls
	call     grammar.Call        // the same, for constraints; no Open = none known
	stop     []int32             // end a turn
	hide     hider               // special tokens

	loading  sync.Mutex // held while an adapter is loaded or unloaded
	encoding chan struct{}

	mu       sync.Mutex
	adapters map[string]loaded
}

// loaded is an adapter being served.
type loaded struct {
	path    string
	digest  string
	created int64
}

// New makes the handler. Errors: a model without tokenizer.
func New(cfg Config) (*Handler, error) {
	if cfg.Model.Tokenizer == nil {
		return nil, fmt.Errorf("openai: model %s has no tokenizer: only files that come with one can be served", cfg.Name)
	}
	if cfg.Encoder != nil && cfg.Encoder.Name == cfg.Name {
		return nil, fmt.Errorf("openai: the model and the embedding model are both called %q: name one otherwise", cfg.Name)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{cfg: cfg, mux: http.NewServeMux(), started: time.Now(), adapters: map[string]loaded{}, encoding: make(chan struct{}, 1)}
	if err := h.readModel(); err != nil {
		return nil, err
	}
	for _, e := range []struct {
		method, path string
		f            func(http.ResponseWriter, *http.Request) error
	}{
		{"POST", "/v1/chat/completions", h.chat},
		{"POST", "/v1/completions", h.completions},
		{"POST", "/v1/embeddings", h.embeddings},
		{"GET", "/v1/models", h.models},
		{"GET", "/v1/models/{name...}", h.model},
		{"POST", "/v1/load_lora_adapter", h.loadAdapter},
		{"POST", "/v1/unload_lora_adapter", h.unloadAdapter},
		{"POST", "/tokenize", h.tokenize},
		{"POST", "/detokenize", h.detokenize},
		{"GET", "/tokenizer_info", h.tokenizerInfo},
	} {
		h.mux.HandleFunc(e.method+" "+e.path, h.answer(e.f))
		h.mux.HandleFunc(e.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", e.method)
			writeError(w, &Error{Message: fmt.Sprintf("%s takes %s, not %s", r.URL.Path, e.method, r.Method), Type: "invalid_request_error", Status: http.StatusMethodNotAllowed})
		})
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &Error{Message: fmt.Sprintf("no such endpoint: %s %s", r.Method, r.URL.Path), Type: "invalid_request_error", Status: http.StatusNotFound})
	})
	return h, nil
}

// readModel finds out how the model ends turns and writes calls.
func (h *Handler) readModel() error {
	m := h.cfg.Model
	h.stop = m.StopIDs
	if len(h.stop) == 0 && m.Config.EOSTokenID >= 0 {
		h.stop = []int32{m.Config.EOSTokenID}
	}
	if m.Template != nil {
		chat, err := rollout.NewModelChat(m)
		if err != nil {
			return fmt.Errorf("openai: %w", err)
		}
		h.stop, h.format = chat.Stop(), chat.Calls()
	}
	var special []string
	for _, a := range m.Tokenizer.AddedTokens() {
		if a.Special {
			special = append(special, a.Content)
		}
	}
	h.hide = newHider(special)
	var marks []string
	if h.format != nil {
		h.call = callForms[h.format.Name]
		marks = append(marks, h.call.Open)
	}
	h.programs.made = map[[32]byte]*grammar.Program{}
	h.programs.vocab, h.programs.noVocab = grammar.NewVocabulary(m.Tokenizer, h.stop, marks...)
	return nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// answer runs an endpoint under a deadline and turns its error into the API's.
func (h *Handler) answer(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), h.cfg.Timeout, fmt.Errorf("the request took longer than the server's limit of %s: %w", h.cfg.Timeout, context.DeadlineExceeded))
		defer cancel()
		start := time.Now()
		err := f(w, r.WithContext(ctx))
		if err == nil {
			return
		}
		e := asError(err)
		level := slog.LevelInfo
		if e.Status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
		h.cfg.Log.Log(ctx, level, "request failed", "path", r.URL.Path, "status", e.Status, "error", e.Message, "took", time.Since(start))
		writeError(w, e)
	}
}

// statusClientLeft is nginx's, for the log: no client sees it.
const statusClientLeft = 499

// asError gives an error its HTTP status.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	status, kind := http.StatusInternalServerError, "server_error"
	switch {
	case errors.Is(err, rollout.ErrContextFull), errors.Is(err, rollout.ErrNoScores), errors.Is(err, sample.ErrNoToken):
		status, kind = http.StatusBadRequest, "invalid_request_error"
	case errors.Is(err, context.Canceled): // the client left; nobody reads this
		status, kind = statusClientLeft, "invalid_request_error"
	case errors.Is(err, rollout.ErrNoAdapter):
		status, kind = http.StatusNotFound, "invalid_request_error"
	case errors.Is(err, rollout.ErrVersion):
		status, kind = http.StatusConflict, "invalid_request_error"
	case errors.Is(err, rollout.ErrBusy):
		status, kind = http.StatusTooManyRequests, "rate_limit_error"
	case errors.Is(err, rollout.ErrEngineClosed):
		status, kind = http.StatusServiceUnavailable, "server_error"
	case errors.Is(err, context.DeadlineExceeded):
		status, kind = http.StatusGatewayTimeout, "server_error"
	}
	return &Error{Message: err.Error(), Type: kind, Status: status}
}

func writeError(w http.ResponseWriter, e *Error) {
	if e.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	data, err := encode(map[string]*Error{"error": e})
	if err == nil {
		_, _ = w.Write(data) // a client that left cannot be told
	}
}

// writeJSON writes a whole answer; a client that does not read it in time is cut
// off.
func writeJSON(w http.ResponseWriter, v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	// A server without write deadlines (a test recorder) has nothing to stall.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	_, _ = w.Write(data) // a client that left cannot be told
	return nil
}

// encode is JSON on one line, with <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// adapterOf maps a request's model name to the engine's adapter name.
func (h *Handler) adapterOf(name string) (string, error) {
	if name == h.cfg.Name || name == "" {
		return "", nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.adapters[name]; ok {
		return name, nil
	}
	served := append([]string{h.cfg.Name}, h.adapterNames()...)
	return "", &Error{Message: fmt.Sprintf("model %q is not served here; served are %s", name, strings.Join(served, ", ")), Type: "invalid_request_error", Status: http.StatusNotFound, Param: ptr("model"), Code: ptr("model_not_found")}
}

func ptr[T any](v T) *T { return &v }
