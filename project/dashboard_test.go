package project

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
)

// Every metric that the dashboard asks for exists.
func TestDashboardAsksForMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../deploy/grafana/skein.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &board))
	require.NotEmpty(t, board.Panels)

	m := newMetrics(slog.New(slog.DiscardHandler))
	conf := cluster.DefaultConfig(t.TempDir())
	conf.Registerer, conf.Logger = m.reg, slog.New(slog.DiscardHandler)
	node, err := cluster.OpenLocal(conf) // registers what its rooms count
	require.NoError(t, err)
	defer node.Close()
	known := map[string]bool{}
	all := make(chan *prometheus.Desc)
	go func() { m.reg.Describe(all); close(all) }()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range all {
		known[name.FindStringSubmatch(d.String())[1]] = true
	}
	asked := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			for _, metric := range regexp.MustCompile(`\b(?:skein|process)_[a-z_]+`).FindAllString(target.Expr, -1) {
				metric = regexp.MustCompile(`_bucket$`).ReplaceAllString(metric, "")
				require.True(t, known[metric], "%s: %s is not served", p.Title, metric)
				asked++
			}
		}
	}
	require.Greater(t, asked, 20)
}
