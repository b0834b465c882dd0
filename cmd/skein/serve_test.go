package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// served is a running skein serve.
type served struct {
	URL    string `json:"url"`
	Model  string
	MaxLen int `json:"max_len"`

	key    string
	signal func(os.Signal) error
	exited chan error
	stderr *lockedBuffer
}

func startServe(t *testing.T, key string, args ...string) *served {
	t.Helper()
	cmd := skein(t, 2*time.Minute, append([]string{"serve", "embedded:tiny", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	cmd.Env = append(cmd.Env, "SKEIN_API_KEY="+key)
	s := &served{key: key, exited: make(chan error, 1), stderr: &lockedBuffer{}}
	cmd.Stderr = s.stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	s.signal = cmd.Process.Signal
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err, s.stderr.String())
	require.NoError(t, json.Unmarshal(line, s))
	go func() { s.exited <- cmd.Wait() }()
	return s
}

func (s *served) post(t *testing.T, path, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequest("POST", s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+s.key)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Do(req)
	require.NoError(t, err, s.stderr.String())
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A real process answers, and a SIGTERM lets it finish what it was asked for.
func TestServeDrains(t *testing.T) {
	root := t.TempDir()
	s := startServe(t, "a-long-secret", "--adapter-root", root, "--adapters", "2", "--max-len", "500", "--slots", "4")
	require.Equal(t, "embedded:tiny", s.Model)
	require.Equal(t, 500, s.MaxLen)

	resp := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is in stock?"}],"max_tokens":8}`)
	require.Equal(t, 200, resp.StatusCode)
	var got struct {
		Model   string
		Choices []struct{ Message struct{ Content *string } }
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
	require.Equal(t, "embedded:tiny", got.Model)
	require.NotNil(t, got.Choices[0].Message.Content)

	metrics, err := http.NewRequest("GET", s.URL+"/metrics", nil)
	require.NoError(t, err)
	metrics.Header.Set("Authorization", "Bearer "+s.key)
	m, err := http.DefaultClient.Do(metrics)
	require.NoError(t, err)
	text, err := io.ReadAll(m.Body)
	m.Body.Close()
	require.NoError(t, err)
	require.Contains(t, string(text), "skein_engine_requests_total 1\n")
	wrong := *s
	wrong.key = "another-secret"
	require.Equal(t, 401, wrong.post(t, "/v1/completions", `{"prompt":"x"}`).StatusCode)

	stream := s.post(t, "/v1/completions", `{"prompt":"the","n":16,"max_tokens":400,"ignore_eos":true,"stream":true}`)
	require.Equal(t, 200, stream.StatusCode)
	body := bufio.NewReader(stream.Body)
	_, err = body.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, s.signal(syscall.SIGTERM))
	rest, err := io.ReadAll(body)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")), "the stream is cut off")
	require.Equal(t, 16, bytes.Count(rest, []byte(`"finish_reason":"length"`)))
	require.NoError(t, <-s.exited, s.stderr.String())
	require.Contains(t, s.stderr.String(), "draining")
	require.Contains(t, s.stderr.String(), "stopped")
}

// What cannot be served is refused before anything is loaded, all of it at once
// and each with its remedy.
func TestServeRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(empty, []byte("\n \n"), 0o600))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--listen", "0.0.0.0:0", "--dtype", "bf16", "--slots", "0"}, []string{"can be reached from other machines", "--open", "computes in f32", "--slots is 0"}},
		{[]string{"--adapter", "nameless", "--adapter-root", "/nowhere", "--timeout", "0s"}, []string{"write it as NAME=FOLDER", "--adapter-root", "--timeout is 0s"}},
		{[]string{"--backend", "tpu", "--tls-cert", "x.pem"}, []string{"use go, xla:cpu or xla:cuda", "give both"}},
		{[]string{"--api-key-file", empty}, []string{"has no key"}},
		{[]string{"--max-len", "999999"}, []string{"takes at most"}},
		{[]string{"--adapter", "a=" + t.TempDir()}, []string{"adapter_config.json"}},
		{[]string{"--embedding-name", "x"}, []string{"needs --embedding-model"}},
	} {
		cmd := skein(t, time.Minute, append([]string{"serve", "embedded:tiny", "--listen", "127.0.0.1:0"}, c.args...)...)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, c.args)
		for _, want := range c.want {
			require.Contains(t, string(out), want)
		}
	}
}
