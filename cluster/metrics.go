package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a replay node.
type metrics struct {
	reg        prometheus.Registerer
	registered []prometheus.Collector

	leads    prometheus.Gauge
	records  prometheus.Counter
	seconds  prometheus.Histogram
	failed   prometheus.Counter
	repaired prometheus.Counter
	// staleTakes: workers whose policy is too old to be given work.
	staleTakes prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		reg: reg,
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skein_cluster_leader", Help: "1 while this node leads and serves."}),
		records: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_cluster_appended_records_total", Help: "Records answered as durable, duplicates included."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skein_cluster_append_seconds", Help: "From an append's arrival to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_cluster_append_failures_total", Help: "Appends that were not acknowledged."}),
		repaired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_cluster_repaired_payloads_total", Help: "Payloads pulled from peers."}),
		staleTakes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_cluster_stale_workers_refused_total", Help: "Requests for work by workers whose policy is too old."}),
	}
	if reg == nil {
		return m
	}
	for _, c := range []prometheus.Collector{m.leads, m.records, m.seconds, m.failed, m.repaired, m.staleTakes} {
		if reg.Register(c) == nil { // of two nodes in one process the first is shown
			m.registered = append(m.registered, c)
		}
	}
	return m
}

func (m *metrics) appended(records int, took time.Duration) {
	m.records.Add(float64(records))
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) close() {
	for _, c := range m.registered {
		m.reg.Unregister(c)
	}
}
