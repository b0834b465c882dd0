// Package serve runs HTTP servers: listening, TLS, bearer tokens, limits,
// health, and an orderly end.
package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
)

// Config is how a server listens.
type Config struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// APIKeys are the bearer tokens accepted; none = no authentication, which is
	// refused on an address that other machines reach, unless Open.
	APIKeys []string
	Open    bool
	// CertFile and KeyFile switch on TLS; both or neither.
	CertFile, KeyFile string
	// DrainTimeout bounds the wait for requests in flight at the end; 0 means 30
	// seconds.
	DrainTimeout time.Duration
	Log          *slog.Logger // nil = none
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		errs = append(errs, fmt.Errorf("listen: %q is no host:port: %w", c.Listen, err))
	}
	if ip := net.ParseIP(host); err == nil && len(c.APIKeys) == 0 && !c.Open && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		errs = append(errs, fmt.Errorf("listen: %q can be reached from other machines, and no API key is set; set one, listen on 127.0.0.1, or say that it may be open", c.Listen))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("tls: give both the certificate and the key file, or neither"))
	}
	for _, k := range c.APIKeys {
		if len(k) < 8 {
			errs = append(errs, fmt.Errorf("api key: %d bytes are too few; give at least 8", len(k)))
		}
	}
	return errors.Join(errs...)
}

// Server is a listening server.
type Server struct {
	cfg  Config
	ln   net.Listener
	http *http.Server
	done chan error
}

// Start listens and serves h. GET /health answers without authentication.
// Every handler runs with its panics turned into a 500.
func Start(cfg Config, h http.Handler) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = 30 * time.Second
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	if cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			ln.Close()
			return nil, fmt.Errorf("serve: tls: %w", err)
		}
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	s := &Server{cfg: cfg, ln: ln, done: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.Handle("/", s.guard(h))
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 1 << 16,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	go func() {
		err := s.http.Serve(ln)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.done <- err
	}()
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// URL is the server's address as clients write it.
func (s *Server) URL() string {
	scheme := "http"
	if s.cfg.CertFile != "" {
		scheme = "https"
	}
	return scheme + "://" + s.ln.Addr().String()
}

// Wait returns when the server failed, or when ctx ended and the requests in
// flight had DrainTimeout to finish.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
	}
	return s.Close()
}

// Close refuses new requests, waits DrainTimeout for those in flight and ends
// what is left.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("serve: requests were still running after %s: %w", s.cfg.DrainTimeout, err), s.http.Close())
	}
	return err
}

// guard checks the bearer token and turns panics into errors.
func (s *Server) guard(next http.Handler) http.Handler {
	sums := make([][32]byte, len(s.cfg.APIKeys))
	for i, k := range s.cfg.APIKeys {
		sums[i] = sha256.Sum256([]byte(k))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(sums) > 0 {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			got, ok := sha256.Sum256([]byte(token)), 0
			for _, want := range sums { // all of them: the time tells nothing
				ok |= subtle.ConstantTimeCompare(got[:], want[:])
			}
			if ok == 0 {
				w.Header().Set("WWW-Authenticate", "Bearer")
				refuse(w, http.StatusUnauthorized, "the API key is missing or wrong: send Authorization: Bearer KEY", "invalid_api_key")
				return
			}
		}
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.cfg.Log.Error("panic in a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				refuse(w, http.StatusInternalServerError, "internal error; the server's log has its cause", "internal_error")
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, status int, message, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "invalid_request_error", "code": code, "param": nil}}) // a client that left cannot be told
}
