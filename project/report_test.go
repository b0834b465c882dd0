package project

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportShowsTableAndPlots(t *testing.T) {
	dir := t.TempDir()
	base := 0.125
	s := Summary{
		Run: "r<un>", Model: "m", Backend: "go", Task: "store", Steps: 2, Window: 1,
		RewardFirst: 0.25, RewardLast: 0.5, HeldoutBefore: 0.375, HeldoutAfter: 0.75, HeldoutBase: &base, HeldoutTasks: 8,
		StepsLog: []StepPoint{
			{Step: 1, Version: 1, Metrics: map[string]float64{"reward": 0.25, "grad_norm": 1}},
			{Step: 2, Version: 2, Metrics: map[string]float64{"reward": 0.5, "grad_norm": 2}},
		},
		Evals: []EvalPoint{{Version: 0, Success: 0.375, Done: 8}, {Version: 2, Success: 0.75, Done: 8}},
	}
	require.True(t, s.Improved())
	require.NoError(t, WriteReport(dir, s, []byte("run: r\n")))
	html, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	text := string(html)
	require.Equal(t, 2, strings.Count(text, "<svg"), "reward and gradient norm; no empty plots")
	for _, want := range []string{"0.375", "0.750", "0.125", "r&lt;un&gt;", "run: r", "reward = 0.5"} {
		require.True(t, strings.Contains(text, want), want)
	}
	for _, never := range []string{"<?xml", "<script", "src=", "@import", "%!"} {
		require.False(t, strings.Contains(text, never), never)
	}
}

func TestTableTellsWhatTheWarmUpDid(t *testing.T) {
	base := 0.0
	s := Summary{HeldoutBase: &base, HeldoutBefore: 0.25, HeldoutAfter: 0.5}
	require.Contains(t, s.Table(), "warm-up")
	s.HeldoutBase = nil
	require.NotContains(t, s.Table(), "warm-up")
}
