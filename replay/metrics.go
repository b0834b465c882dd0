package replay

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one node's storage.
type metrics struct {
	reg          prometheus.Registerer
	all          []prometheus.Collector
	payloads     prometheus.Counter
	payloadBytes prometheus.Counter
	applied      prometheus.Counter
	diskFull     prometheus.Counter
	corrupt      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, l *Local) *metrics {
	m := &metrics{reg: reg}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skein", Subsystem: "replay", Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	m.payloads = counter("payloads_total", "EventLogs made durable on this node.")
	m.payloadBytes = counter("payload_bytes_total", "Their bytes before compression.")
	m.applied = counter("applied_entries_total", "Raft entries folded into the state.")
	m.diskFull = counter("disk_full_refusals_total", "Appends and blobs refused at the free-space watermark.")
	m.corrupt = counter("corrupt_payloads_total", "Stored EventLogs that failed their checksum when read.")
	m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "skein", Subsystem: "replay", Name: "free_bytes", Help: "Free space of the data directory.",
	}, func() float64 {
		free, _, err := l.Space()
		if err != nil {
			return -1
		}
		return float64(free)
	}))
	if reg != nil {
		for _, c := range m.all {
			// Two nodes in one process share a registry: the first is counted.
			_ = reg.Register(c)
		}
	}
	return m
}

func (m *metrics) close() {
	if m.reg != nil {
		for _, c := range m.all {
			m.reg.Unregister(c)
		}
	}
}
