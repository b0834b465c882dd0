package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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

func serveTiny(t *testing.T, adapterRoot string) *served {
	t.Helper()
	m, err := tiny.Open()
	require.NoError(t, err)
	b, err := gobackend.New(m, gobackend.Options{Threads: 2})
	require.NoError(t, err)
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 8, MaxLen: 512, Adapters: 3})
	require.NoError(t, err)
	e, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: 8, MaxLen: 512, Adapters: 3, MaxWaiting: 64, Text: TextOf(m.Tokenizer)})
	require.NoError(t, err)
	enc, err := embed.Open("../../model/embed/testdata/tiny", 1)
	require.NoError(t, err)
	enc.Name = "tiny-bert"
	h, err := New(Config{Name: "tiny", Model: m, Engine: e, Encoder: enc, AdapterRoot: adapterRoot})
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
func (s *served) post(t *testing.T, path string, body any) (int, map[string]any) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	return s.raw(t, path, data)
}

func (s *served) raw(t *testing.T, path string, data []byte) (int, map[string]any) {
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
