package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/embed"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/serve"
	"github.com/skein-rl/skein/serve/openai"
)

// serveFlags are the flags of skein serve.
type serveFlags struct {
	name, backend, dtype, embedding, embeddingName, adapterRoot, keyFile string
	slots, maxLen, threads, places, maxWaiting                           int
	adapters                                                             []string
	timeout                                                              time.Duration
	http                                                                 serve.Config
}

func newServe(g *globals) *cobra.Command {
	f := serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve MODEL",
		Short: "Serve a model over the OpenAI API, with adapters loaded while it runs",
		Long: `serve answers /v1/chat/completions, /v1/completions, /v1/models, /v1/embeddings
(with --embedding-model), vLLM's /v1/load_lora_adapter and
/v1/unload_lora_adapter (with --adapter-root), /tokenize, /detokenize, /health
and /metrics.

MODEL is a folder in Hugging Face layout, a .gguf file, a reference that was
pulled, or embedded:tiny. Requests beyond the context, unknown fields and
impossible values are refused with the reason; no option is ignored.
docs/serving.md lists the fields.

On an interrupt or SIGTERM no new request is taken, those in flight have
--drain-timeout to finish, and the exit status is 0 when they did; a second
signal ends the process at once.`,
		Example: `  skein serve embedded:tiny
  skein serve ./my-model --listen 127.0.0.1:8000 --adapter tuned=runs/demo/adapter
  SKEIN_API_KEY=… skein serve model.gguf --listen 0.0.0.0:8000 --adapter-root /srv/adapters --adapters 4
  curl -s localhost:8000/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}'`,
		Args: oneArg("MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), g, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.http.Listen, "listen", "127.0.0.1:8000", "host:port; port 0 takes a free one")
	fl.StringVar(&f.name, "name", "", "model name in requests (default: that of MODEL)")
	fl.StringVar(&f.backend, "backend", "go", "go, xla:cpu or xla:cuda")
	fl.StringVar(&f.dtype, "dtype", "f32", "f32 or bf16 (xla)")
	fl.IntVar(&f.threads, "threads", 0, "threads of the go backend (0 = every core)")
	fl.IntVar(&f.slots, "slots", 16, "sequences decoded together")
	fl.IntVar(&f.maxLen, "max-len", 0, "context in tokens, prompt included (0 = the model's, at most 4096)")
	fl.IntVar(&f.maxWaiting, "max-waiting", 1024, "requests that may wait for a slot; more are refused with 429")
	fl.IntVar(&f.places, "adapters", 1, "adapters loaded at once")
	fl.StringArrayVar(&f.adapters, "adapter", nil, "NAME=FOLDER of a LoRA adapter to serve; repeatable")
	fl.StringVar(&f.adapterRoot, "adapter-root", "", "allow loading adapters from this folder while serving")
	fl.StringVar(&f.embedding, "embedding-model", "", "folder of a sentence encoder for /v1/embeddings")
	fl.StringVar(&f.embeddingName, "embedding-name", "", "its name in requests (default: that of the folder)")
	fl.StringVar(&f.keyFile, "api-key-file", "", "file with accepted bearer tokens, one a line (also SKEIN_API_KEY)")
	fl.BoolVar(&f.http.Open, "open", false, "serve other machines without authentication")
	fl.StringVar(&f.http.CertFile, "tls-cert", "", "certificate file for https")
	fl.StringVar(&f.http.KeyFile, "tls-key", "", "its key file")
	fl.DurationVar(&f.timeout, "timeout", 10*time.Minute, "longest time for one request, waiting included")
	fl.DurationVar(&f.http.DrainTimeout, "drain-timeout", 30*time.Second, "time for requests in flight at the end")
	return cmd
}

func (f *serveFlags) run(ctx context.Context, g *globals, name string) error {
	if err := f.readKeys(); err != nil {
		return err
	}
	log := infoLogger()
	f.http.Log = log.With("component", "serve")
	if err := f.validate(); err != nil { // before minutes of loading
		return err
	}
	var encoder *embed.Encoder
	if f.embedding != "" {
		path, err := modelPath(f.embedding)
		if err != nil {
			return err
		}
		if encoder, err = embed.Open(path, threads(f.threads)); err != nil {
			return err
		}
		if f.embeddingName != "" {
			encoder.Name = f.embeddingName
		}
	}
	m, err := project.OpenModel(name, model.WithProgress(meter("reading "+name)))
	if err != nil {
		return err
	}
	defer m.Close()
	if ctx.Err() != nil { // interrupted while loading
		return context.Cause(ctx)
	}
	engine, closeEngine, err := f.engine(m, g)
	if err != nil {
		return err
	}
	defer closeEngine()
	if f.name == "" {
		f.name = filepath.Base(m.Name)
	}
	api, err := openai.New(openai.Config{Name: f.name, Model: m, Engine: engine, Encoder: encoder, AdapterRoot: f.adapterRoot, Timeout: f.timeout, Log: log.With("component", "openai")})
	if err != nil {
		return err
	}
	for _, a := range f.adapters {
		adapter, dir, _ := strings.Cut(a, "=")
		if err := api.LoadAdapter(adapter, dir, false); err != nil {
			return fmt.Errorf("--adapter %s: %w", a, err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("GET /metrics", serve.Metrics(engine.Stats))
	s, err := serve.Start(f.http, mux)
	if err != nil {
		return err
	}
	log.Info("serving", "url", s.URL(), "model", f.name, "backend", f.backend, "context", engine.MaxLen(), "slots", f.slots)
	if err := g.result(map[string]any{"url": s.URL(), "model": f.name, "digest": m.Digest, "max_len": engine.MaxLen()}, func() { fmt.Println(s.URL()) }); err != nil {
		return errors.Join(err, s.Close())
	}
	defer context.AfterFunc(ctx, func() {
		log.Info("draining: requests in flight go on, new ones are refused; a second signal ends at once", "at most", f.http.DrainTimeout)
		signal.Reset(os.Interrupt, syscall.SIGTERM)
	})()
	if err := s.Wait(ctx); err != nil {
		return err
	}
	log.Info("stopped", "requests", engine.Stats().Requests)
	return nil
}

// validate reports every flag that cannot be used, with its remedy.
func (f *serveFlags) validate() error {
	errs := []error{f.http.Validate()}
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	switch f.backend {
	case "xla:cpu", "xla:cuda":
	case "go":
		if f.dtype != "f32" {
			bad("--dtype %s: the go backend computes in f32; use --backend xla:cpu or xla:cuda", f.dtype)
		}
	default:
		bad("--backend %q: use go, xla:cpu or xla:cuda", f.backend)
	}
	for _, n := range []struct {
		flag         string
		value, least int
	}{{"slots", f.slots, 1}, {"max-len", f.maxLen, 0}, {"max-waiting", f.maxWaiting, 1}, {"adapters", f.places, 0}, {"threads", f.threads, 0}} {
		if n.value < n.least {
			bad("--%s is %d; give %d or more", n.flag, n.value, n.least)
		}
	}
	if f.timeout <= 0 {
		bad("--timeout is %s; give a positive time", f.timeout)
	}
	if f.http.DrainTimeout <= 0 {
		bad("--drain-timeout is %s; give a positive time", f.http.DrainTimeout)
	}
	for _, a := range f.adapters {
		if name, dir, ok := strings.Cut(a, "="); !ok || name == "" || dir == "" {
			bad("--adapter %q: write it as NAME=FOLDER", a)
		}
	}
	if f.adapterRoot != "" {
		if st, err := os.Stat(f.adapterRoot); err != nil {
			bad("--adapter-root: %w", err)
		} else if !st.IsDir() {
			bad("--adapter-root %s is no folder", f.adapterRoot)
		}
	}
	if f.embeddingName != "" && f.embedding == "" {
		bad("--embedding-name needs --embedding-model")
	}
	return errors.Join(errs...)
}

// engine loads the weights and starts the engine; the second result stops it.
func (f *serveFlags) engine(m *model.Model, g *globals) (*rollout.LocalEngine, func(), error) {
	maxLen, limit := f.maxLen, m.Config.ContextLimit()
	switch {
	case maxLen == 0:
		maxLen = min(limit, 4096)
	case maxLen > limit:
		return nil, nil, fmt.Errorf("--max-len is %d, and %s takes at most %d tokens", maxLen, m.Name, limit)
	}
	c := project.DefaultConfig()
	c.Backend, c.Dtype, c.Threads = f.backend, f.dtype, f.threads
	b, err := project.OpenBackend(c, m, g.logger())
	if err != nil {
		return nil, nil, err
	}
	places := 1 + max(f.places, len(f.adapters)) // the policy's own place stays free
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: f.slots, MaxLen: maxLen, Adapters: places})
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	var text func([]int32) rollout.TextStream
	if m.Tokenizer != nil {
		text = openai.TextOf(m.Tokenizer)
	}
	e, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: f.slots, MaxLen: maxLen, Adapters: places, MaxWaiting: f.maxWaiting, Text: text})
	if err != nil {
		return nil, nil, errors.Join(err, dec.Close(), b.Close())
	}
	return e, func() { _ = errors.Join(e.Close(), b.Close()) }, nil // the process ends
}

// threads is the number asked for, 0 being every core.
func threads(n int) int {
	if n == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return n
}

// readKeys gathers the bearer tokens.
func (f *serveFlags) readKeys() error {
	if key := os.Getenv("SKEIN_API_KEY"); key != "" {
		f.http.APIKeys = append(f.http.APIKeys, key)
	}
	if f.keyFile == "" {
		return nil
	}
	file, err := os.Open(f.keyFile)
	if err != nil {
		return fmt.Errorf("--api-key-file: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if key := strings.TrimSpace(lines.Text()); key != "" {
			f.http.APIKeys = append(f.http.APIKeys, key)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("--api-key-file: %w", err)
	}
	if len(f.http.APIKeys) == 0 { // whoever names a file means to be asked for keys
		return fmt.Errorf("--api-key-file: %s has no key", f.keyFile)
	}
	return nil
}
