// Package serve runs HTTP servers: listening, TLS, bearer tokens, limits,
// health, metrics, and an orderly end.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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

const (
	headerTimeout = 10 * time.Second // for a request's header
	readTimeout   = 2 * time.Minute  // for all of a request
	idleTimeout   = 2 * time.Minute  // of a connection between requests
	maxHeader     = 1 << 16          // bytes
	leastKey      = 8                // bytes of an API key
)

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		errs = append(errs, fmt.Errorf("listen: %q is no host:port: %w", c.Listen, err))
	}
	if err == nil && len(c.APIKeys) == 0 && !c.Open && !loopback(host) {
		errs = append(errs, fmt.Errorf("listen: %q can be reached from other machines, and no API key is set: set one (SKEIN_API_KEY or --api-key-file), listen on 127.0.0.1, or pass --open", c.Listen))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("tls: give both the certificate and the key file, or neither"))
	}
	for _, k := range c.APIKeys {
		if len(k) < leastKey {
			errs = append(errs, fmt.Errorf("api key: %d bytes are too few; give at least %d", len(k), leastKey))
		}
	}
	return errors.Join(errs...)
}

// loopback says whether a host name means this machine only.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Server is a listening server.
type Server struct {
	cfg  Config
	ln   net.Listener
	http *http.Server
	done chan error
}

// Start listens and serves h. GET /health answers without authentication. A
// request that a browser sends for another site's page is refused, and so is
// one for a foreign host name while the server is this machine's own: both are
// ways to reach a server that trusts its machine. A panic becomes a 500, or the
// end of the connection once an answer has begun.
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
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
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
