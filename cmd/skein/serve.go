package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
	slots, maxLen, threads, places, maxWaiting            int
	adapters                                              []string
	timeout                                               time.Duration
	http                                                  serve.Config
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
impossible values are refused with the reason; no option is ignored.`,
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
	fl.DurationVar(&f.timeout, "timeout", 10*time.Minute, "longest time for one request")
	return cmd
}

func (f *serveFlags) run(ctx context.Context, g *globals, name string) error {
	if err := f.readKeys(); err != nil {
		return err
	}
	log := infoLogger()
	f.http.Log = log.With("component", "serve")
	if err := f.http.Validate(); err != nil { // before minutes of loading
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
	m, err := project.OpenModel(name)
	if err != nil {
		return err
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
		adapter, dir, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("--adapter %q: write it as NAME=FOLDER", a)
		}
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
	return s.Wait(ctx)
}

// engine loads the weights and starts the engine; the second result stops it.
func (f *serveFlags) engine(m *model.Model, g *globals) (*rollout.LocalEngine, func(), error) {
	maxLen := f.maxLen
	if maxLen == 0 {
		maxLen = min(m.Config.ContextLimit(), 4096)
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
	return nil
}
