package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/embed"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a server of the embedded model.
type served struct {
	*httptest.Server
	h      *Handler
	m      *model.Model
	engine *rollout.LocalEngine
}

// setup varies the server of a test.
type setup struct {
	root    string // of adapters
	wrap    func(model.Decoder) model.Decoder
	timeout time.Duration
	waiting int // requests that may wait; 0 = 64
}

func serveTiny(t testing.TB, adapterRoot string) *served {
	t.Helper()
	return serveWith(t, setup{root: adapterRoot})
}

func serveWith(t testing.TB, c setup) *served {
	t.Helper()
	m, err := tiny.Open()
	require.NoError(t, err)
	b, err := gobackend.New(m, gobackend.Options{Threads: 2})
	require.NoError(t, err)
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 8, MaxLen: 512, Adapters: 3})
	require.NoError(t, err)
	if c.wrap != nil {
		dec = c.wrap(dec)
	}
	if c.waiting == 0 {
		c.waiting = 64
	}
	e, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: 8, MaxLen: 512, Adapters: 3, MaxWaiting: c.waiting, Text: TextOf(m.Tokenizer)})
	require.NoError(t, err)
	enc, err := embed.Open("../../model/embed/testdata/tiny", 1)
	require.NoError(t, err)
	enc.Name = "tiny-bert"
	h, err := New(Config{Name: "tiny", Model: m, Engine: e, Encoder: enc, AdapterRoot: c.root, Timeout: c.timeout})
	require.NoError(t, err)
	s := &served{httptest.NewServer(h), h, m, e}
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, e.Close())
		require.NoError(t, b.Close())
	})
	return s
}

// post sends JSON and decodes the answer, whatever its status.
func (s *served) post(t testing.TB, path string, body any) (int, map[string]any) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	return s.raw(t, path, data)
}

func (s *served) raw(t testing.TB, path string, data []byte) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.URL+path, bytes.NewReader(data))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(body, &out), "%s", body)
	return resp.StatusCode, out
}

type obj = map[string]any
