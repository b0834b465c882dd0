package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer speaks vLLM's completions, or llama.cpp's, strictly: what it does not
// know is refused. Its model is a hash of adapter and prompt; stop comes fourth.
type fakeServer struct {
	*httptest.Server
	t     *testing.T
	llama bool

	mu       sync.Mutex
	maxLen   int
	raw      bool // logprobs of the model's own distribution
	noLoRA   bool // runtime updating is off
	adapters map[string]string
	running  int
	most     int
	calls    map[string]int
	bodies   []map[string]any
	// fault may answer a call itself (true) or change the answer it would get.
	fault  func(call int, w http.ResponseWriter, r *http.Request) bool
	change func(answer map[string]any)
	// hold is waited on inside a completion.
	hold chan struct{}
}

const fakeStop = 7

func newFake(t *testing.T, llama bool) *fakeServer {
	f := &fakeServer{t: t, llama: llama, maxLen: 512, adapters: map[string]string{}, calls: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeServer) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[path]
}

func (f *fakeServer) names() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.adapters {
		out = append(out, name)
	}
	return out
}

func refuse(w http.ResponseWriter, status int, format string, a ...any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": fmt.Sprintf(format, a...), "code": status}})
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	f.calls[r.URL.Path]++
	n, fault := f.calls[r.URL.Path], f.fault
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if fault != nil && fault(n, w, r) {
		return
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	case f.llama && r.URL.Path == "/props":
		f.answer(w, map[string]any{"default_generation_settings": map[string]any{"n_ctx": f.maxLen}, "total_slots": 4})
	case f.llama && r.URL.Path == "/lora-adapters":
		list := []map[string]any{}
		f.set(func() {
			for name := range f.adapters {
				list = append(list, map[string]any{"id": len(list), "path": "/gguf/" + name + ".gguf", "scale": 0})
			}
		})
		f.answer(w, list)
	case f.llama && r.URL.Path == "/completion":
		f.complete(w, r, body)
	case !f.llama && r.URL.Path == "/v1/models":
		f.models(w)
	case !f.llama && r.URL.Path == "/v1/completions":
		f.complete(w, r, body)
	case !f.llama && !f.noLoRA && strings.HasSuffix(r.URL.Path, "load_lora_adapter"):
		f.lora(w, body, strings.Contains(r.URL.Path, "unload"))
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"detail":"Not Found"}`))
	}
}

func (f *fakeServer) answer(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func (f *fakeServer) models(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := []map[string]any{{"id": "base", "root": "/models/base", "max_model_len": f.maxLen}}
	for name, path := range f.adapters {
		list = append(list, map[string]any{"id": name, "root": path, "parent": "base"})
	}
	f.answer(w, map[string]any{"object": "list", "data": list})
}

func (f *fakeServer) lora(w http.ResponseWriter, body []byte, unload bool) {
	var in struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil || in.Name == "" || in.Path == "" != unload {
		refuse(w, 400, "Both 'lora_name' and 'lora_path' must be provided.")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, have := f.adapters[in.Name]
	switch {
	case unload && !have:
		refuse(w, 404, "The lora adapter '%s' cannot be found.", in.Name)
	case unload:
		delete(f.adapters, in.Name)
	case have:
		refuse(w, 400, "The lora adapter '%s' has already been loaded.", in.Name)
	default:
		if _, err := os.Stat(filepath.Join(in.Path, "adapter_model.safetensors")); err != nil {
			refuse(w, 404, "No adapter found for %s", in.Path)
			return
		}
		f.adapters[in.Name] = in.Path
	}
}

func (f *fakeServer) complete(w http.ResponseWriter, r *http.Request, body []byte) {
	var hold chan struct{}
	var change func(map[string]any)
	f.set(func() { f.running++; f.most = max(f.most, f.running); hold, change = f.hold, f.change })
	defer f.set(func() { f.running-- })
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	var in map[string]any
	if err := json.Unmarshal(body, &in); err != nil {
		refuse(w, 400, "%v", err)
		return
	}
	f.set(func() { f.bodies = append(f.bodies, in) })
	var v completionBody
	var l llamaBody
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	dst, sample := any(&v), &v.Temperature
	if f.llama {
		dst, sample = &l, &l.Temperature
	}
	if err := d.Decode(dst); err != nil {
		refuse(w, 400, "%v", err)
		return
	}
	prompt, n, topK, stop, name := v.Prompt, v.MaxTokens, v.TopK, v.StopTokenIDs, v.Model
	if f.llama {
		prompt, n, topK, stop, name = l.Prompt, l.Predict, l.TopK, []int32{fakeStop}, fmt.Sprint(l.LoRA)
	} else if name != "base" {
		f.mu.Lock()
		_, ok := f.adapters[name]
		f.mu.Unlock()
		if !ok {
			refuse(w, 404, "The model `%s` does not exist.", name)
			return
		}
	}
	if len(prompt)+n > f.maxLen {
		refuse(w, 400, "This model's maximum context length is %d tokens. However, you requested %d.", f.maxLen, len(prompt)+n)
		return
	}
	ids, lps, finish := []int32{}, []float64{}, "length"
	for i := 0; i < n; i++ {
		h := fnv.New32a()
		fmt.Fprint(h, name, prompt, i)
		id, lp := int32(10+h.Sum32()%200), -float64(1+h.Sum32()%100)/50
		if i == 3 && len(stop) > 0 {
			id = fakeStop
		}
		if topK == 1 && !f.raw && *sample > 0 {
			lp = 0
		}
		ids, lps = append(ids, id), append(lps, lp)
		if id == fakeStop {
			finish = "stop"
			break
		}
	}
	out := f.vllmAnswer(prompt, ids, lps, finish)
	if f.llama {
		out = f.llamaAnswer(prompt, ids, lps, finish, l.PostProbs)
	}
	if change != nil {
		change(out)
	}
	f.answer(w, out)
}

func (f *fakeServer) vllmAnswer(prompt, ids []int32, lps []float64, finish string) map[string]any {
	names := []string{}
	for _, id := range ids {
		names = append(names, fmt.Sprintf("token_id:%d", id))
	}
	return map[string]any{
		"choices": []any{map[string]any{"index": 0, "text": "?", "finish_reason": finish, "token_ids": ids, "prompt_token_ids": prompt,
			"logprobs": map[string]any{"tokens": names, "token_logprobs": lps}}},
		"usage": map[string]any{"prompt_tokens": len(prompt)},
	}
}

func (f *fakeServer) llamaAnswer(prompt, ids []int32, lps []float64, finish string, post bool) map[string]any {
	probs := []any{}
	for i, id := range ids {
		p := map[string]any{"id": id, "logprob": lps[i]}
		if post {
			p = map[string]any{"id": id, "prob": 0.5}
			if lps[i] == 0 {
				p["prob"] = 1
			}
		}
		probs = append(probs, p)
	}
	return map[string]any{"tokens": ids, "completion_probabilities": probs, "truncated": false, "tokens_evaluated": len(prompt),
		"stop_type": map[string]string{"stop": "eos", "length": "limit"}[finish]}
}

// choice is where most of an answer is.
func choice(a map[string]any) map[string]any { return a["choices"].([]any)[0].(map[string]any) }

func testModel(t *testing.T) *model.Model {
	m, err := tiny.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func testAdapter(t *testing.T, m *model.Model, fill float32) *model.Adapter {
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}
	layout, err := model.LoRALayout(m.Config, lora)
	require.NoError(t, err)
	a := &model.Adapter{LoRA: lora, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for i := range a.Params {
		a.Params[i] = fill * float32(i%7)
	}
	return a
}

func (f *fakeServer) config(t *testing.T, kind Kind) Config {
	c := DefaultConfig()
	c.Kind, c.URL, c.Key, c.Adapters, c.Timeout, c.Attempts = kind, f.URL, "secret", t.TempDir(), 20*time.Second, 3
	return c
}

func (f *fakeServer) engine(t *testing.T, m *model.Model, change func(*Config)) *Engine {
	kind := VLLM
	if f.llama {
		kind = LlamaCPP
	}
	c := f.config(t, kind)
	if change != nil {
		change(&c)
	}
	s, err := Open(context.Background(), c, m)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	s.pause = 2 * time.Millisecond
	e, err := s.ForRun(context.Background(), "demo", m, 256, kind == VLLM)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func ask(prompt ...int32) rollout.GenerateRequest {
	return rollout.GenerateRequest{Session: "s", Prompt: prompt, MaxNew: 6, Stop: []int32{fakeStop}, Sampling: model.Sampling{Temperature: 1, Seed: 1 << 63}}
}
