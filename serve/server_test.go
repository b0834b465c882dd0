package serve

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves h on a free port of this machine until the test ends.
func start(t *testing.T, cfg Config, h http.HandlerFunc) *Server {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	s, err := Start(cfg, h)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s
}

// ask sends one request on a connection of its own and returns status and body.
func ask(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func request(t *testing.T, method, url string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader("{}"))
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func TestConfig(t *testing.T) {
	keys := []string{"long-enough"}
	for name, c := range map[string]struct {
		cfg  Config
		want string // "" = good
	}{
		"loopback needs no key":  {Config{Listen: "127.0.0.1:0"}, ""},
		"localhost":              {Config{Listen: "localhost:0"}, ""},
		"IPv6 loopback":          {Config{Listen: "[::1]:0"}, ""},
		"open to all, with key":  {Config{Listen: "0.0.0.0:1", APIKeys: keys}, ""},
		"open to all, on demand": {Config{Listen: ":1", Open: true}, ""},
		"open to all":            {Config{Listen: "0.0.0.0:1"}, "can be reached from other machines"},
		"every address":          {Config{Listen: ":1"}, "can be reached from other machines"},
		"a name":                 {Config{Listen: "trainer:1"}, "can be reached from other machines"},
		"no port":                {Config{Listen: "127.0.0.1"}, "is no host:port"},
		"half of TLS":            {Config{Listen: "127.0.0.1:0", CertFile: "x"}, "give both"},
		"short key":              {Config{Listen: "127.0.0.1:0", APIKeys: []string{"short"}}, "5 bytes are too few"},
		"TLS files missing":      {Config{Listen: "127.0.0.1:0", CertFile: "no.pem", KeyFile: "no.key"}, "no.pem"},
		"port taken by no one":   {Config{Listen: "127.0.0.1:99999"}, "99999"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.cfg.Validate()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			s, err := Start(c.cfg, http.NotFoundHandler())
			if err == nil {
				s.Close()
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestBearerTokens(t *testing.T) {
	s := start(t, Config{APIKeys: []string{"first-key", "second-key"}}, hello)
	for _, c := range []struct {
		auth   string
		status int
	}{
		{"Bearer first-key", 200}, {"bearer second-key", 200},
		{"", 401}, {"Bearer", 401}, {"Bearer ", 401}, {"Bearer first-ke", 401}, {"first-key", 401}, {"Basic first-key", 401}, {"Bearer first-key second-key", 401},
	} {
		status, body := ask(t, request(t, "POST", s.URL()+"/x", "Authorization", c.auth))
		require.Equal(t, c.status, status, c.auth)
		if status == 401 {
			var e struct {
				Error struct{ Message, Code string }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &e))
			require.Equal(t, "invalid_api_key", e.Error.Code)
			require.NotContains(t, body, "first-key")
		}
	}
	status, _ := ask(t, request(t, "GET", s.URL()+"/health"))
	require.Equal(t, 200, status, "health needs no key")
}

// A server that trusts its machine is not to be reached through a browser on it:
// neither by the page of another site nor by a name that points here (DNS
// rebinding).
func TestForeignPages(t *testing.T) {
	s := start(t, Config{}, hello)
	for _, c := range []struct {
		host, origin, site string
		status             int
	}{
		{"", "", "", 200},
		{"localhost:1", "", "", 200},
		{"[::1]:8000", "", "", 200},
		{"evil.example:8000", "", "", 403},
		{"127.0.0.1.evil.example", "", "", 403},
		{"", "http://evil.example", "", 403},
		{"", "", "cross-site", 403},
		{"", "", "same-origin", 200},
	} {
		req := request(t, "POST", s.URL()+"/x")
		req.Host = c.host
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		if c.site != "" {
			req.Header.Set("Sec-Fetch-Site", c.site)
		}
		status, _ := ask(t, req)
		require.Equal(t, c.status, status, c)
	}
	keyed := start(t, Config{APIKeys: []string{"long-enough"}}, hello)
	req := request(t, "POST", keyed.URL()+"/x", "Authorization", "Bearer long-enough")
	req.Host = "trainer.example"
	status, _ := ask(t, req)
	require.Equal(t, 200, status, "a key makes any host name good")
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))

	s := start(t, Config{CertFile: certFile, KeyFile: keyFile}, hello)
	require.True(t, strings.HasPrefix(s.URL(), "https://"))
	roots := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(cert)
	require.NoError(t, err)
	roots.AddCert(parsed)
	get := func(c *tls.Config) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
		resp, err := client.Get(s.URL() + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.NoError(t, get(&tls.Config{RootCAs: roots}))
	require.Error(t, get(&tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11}))
	require.Error(t, get(&tls.Config{}), "an unknown certificate")
}

func TestPanics(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	s := start(t, Config{Log: slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			_, _ = io.WriteString(w, "half an ans")
			_ = http.NewResponseController(w).Flush()
		}
		panic("secret cause")
	})
	status, body := ask(t, request(t, "POST", s.URL()+"/early"))
	require.Equal(t, 500, status)
	require.NotContains(t, body, "secret cause")
	require.Contains(t, body, "server_error")
	mu.Lock()
	require.Contains(t, log.String(), "secret cause")
	require.Contains(t, log.String(), "server_test.go", "the stack")
	mu.Unlock()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(request(t, "POST", s.URL()+"/late"))
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err, "half an answer must not look whole")
	status, _ = ask(t, request(t, "GET", s.URL()+"/health"))
	require.Equal(t, 200, status, "the server lives on")
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestHeaderLimit(t *testing.T) {
	s := start(t, Config{}, hello)
	status, _ := ask(t, request(t, "GET", s.URL()+"/x", "X-Long", strings.Repeat("a", 2*maxHeader)))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, status)
}

// blocked serves requests that say when they began and end when told.
func blocked(t *testing.T, cfg Config) (s *Server, began, release chan struct{}) {
	began, release = make(chan struct{}), make(chan struct{})
	return start(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "done")
	}), began, release
}

// At the end requests in flight are finished and new ones refused.
func TestDrain(t *testing.T) {
	s, began, release := blocked(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Wait(ctx) }()
	answer := make(chan string, 1)
	go func() {
		_, body := ask(t, request(t, "POST", s.URL()+"/x"))
		answer <- body
	}()
	<-began
	cancel()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", s.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	}, 10*time.Second, 5*time.Millisecond, "still takes connections")
	select {
	case err := <-ended:
		t.Fatalf("ended before its request: %v", err)
	default:
	}
	close(release)
	require.Equal(t, "done", <-answer)
	require.NoError(t, <-ended)
}

// What does not finish in time is cut off, and said.
func TestDrainTimeout(t *testing.T) {
	s, began, release := blocked(t, Config{DrainTimeout: 20 * time.Millisecond})
	defer close(release)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	failed := make(chan error, 1)
	go func() {
		resp, err := client.Do(request(t, "POST", s.URL()+"/x"))
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-began
	require.ErrorContains(t, s.Close(), "still running after 20ms")
	require.Error(t, <-failed)
}

// A listener that breaks ends Wait with its error.
func TestListenerBreaks(t *testing.T) {
	s := start(t, Config{}, hello)
	require.NoError(t, s.ln.Close())
	require.Error(t, s.Wait(context.Background()))
}
