package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metricsAddrFile holds the address a process serves its metrics on.
const metricsAddrFile = "metrics-addr"

// Bounds of the endpoint: a slow or stuck scraper costs little and ends.
const (
	scrapeTimeout   = 10 * time.Second // of collecting
	scrapeTransfer  = 10 * time.Second // of a request, and of an answer beyond scrapeTimeout
	scrapesAtOnce   = 4
	scrapeHeader    = 64 << 10 // bytes
	metricsShutdown = 2 * time.Second
)

// metrics are one process's numbers and the listener that serves them to
// Prometheus: /metrics, and /healthz, which answers as long as the process
// does. A nil *metrics takes everything and serves nothing, so callers never
// ask whether metrics are on. Nothing that happens to a scrape reaches the
// work.
type metrics struct {
	reg     *prometheus.Registry
	node    nodeMetrics
	worker  workerMetrics
	learner learnerMetrics

	log     *slog.Logger
	addr    string
	srv     *http.Server
	serving sync.WaitGroup
	file    string // written by announce
}

// serveMetrics binds addr (HOST:PORT, port 0 = any free one) and serves on it
// until Close. addr "" is off: it returns nil.
func serveMetrics(addr string, log *slog.Logger) (*metrics, error) {
	if addr == "" {
		return nil, nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("project: --metrics: %q: use HOST:PORT, such as 127.0.0.1:9464: %w", addr, err)
	}
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("project: --metrics: %q: the port is taken: use another one, or 0 for any free one (its number is then in DIR/%s): %w", addr, metricsAddrFile, err)
	}
	if err != nil {
		return nil, fmt.Errorf("project: --metrics: %q: %w: use an address of this machine", addr, err)
	}
	m := newMetrics(log.With("component", "metrics"))
	m.addr = ln.Addr().String()
	m.srv = &http.Server{
		Handler:           m.handler(),
		ReadHeaderTimeout: scrapeTransfer,
		ReadTimeout:       scrapeTransfer,
		WriteTimeout:      scrapeTimeout + scrapeTransfer,
		IdleTimeout:       2 * time.Minute, // two scrapes at the usual interval
		MaxHeaderBytes:    scrapeHeader,
		ErrorLog:          slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
	}
	m.serving.Go(func() {
		if err := m.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			m.log.Error("metrics are not served any more; the work goes on", "addr", m.addr, "error", err)
		}
	})
	m.log.Info("serving metrics", "addr", m.addr)
	return m, nil
}

// newMetrics makes the registry with everything this package collects.
func newMetrics(log *slog.Logger) *metrics {
	m := &metrics{reg: prometheus.NewRegistry(), log: log}
	m.reg.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.node.collector(), m.worker.collector(), m.learner.collector(),
	)
	return m
}

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // what can be had is served
		MaxRequestsInFlight: scrapesAtOnce,
		Timeout:             scrapeTimeout,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// registerer is for the rooms that keep their own metrics; nil when off.
func (m *metrics) registerer() prometheus.Registerer {
	if m == nil {
		return nil
	}
	return m.reg
}

// announce writes the bound address to DIR/metrics-addr. Call it when dir is
// known to be this process's.
func (m *metrics) announce(dir string) error {
	if m == nil {
		return nil
	}
	m.file = filepath.Join(dir, metricsAddrFile)
	return writeFile(m.file, []byte(m.addr+"\n"))
}

// Close stops serving, waits for scrapes going on, and takes the address file
// away, unless it is another process's by now.
func (m *metrics) Close() error {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), metricsShutdown)
	defer cancel()
	err := m.srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = m.srv.Close() // a scraper too slow to wait for
	}
	m.serving.Wait()
	if m.file != "" {
		if addr, rerr := readFirstLine(m.file); rerr == nil && addr == m.addr {
			err = errors.Join(err, os.Remove(m.file))
		}
	}
	return err
}
