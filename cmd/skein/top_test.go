package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

func overview(at time.Time, logs int) project.Overview {
	return project.Overview{At: at,
		Cluster: &cluster.ClusterStatus{Cluster: "483e2efa", Leader: "replay-1", Term: 7, Nodes: []cluster.NodeStatus{
			{NodeInfo: cluster.NodeInfo{ID: "replay-1", Role: "replay"}, Alive: true, Leader: true, Voter: true},
			{NodeInfo: cluster.NodeInfo{ID: "replay-2", Role: "replay"}, LastSeen: at.Add(-42 * time.Second), Missing: 3},
			{NodeInfo: cluster.NodeInfo{ID: "worker-1", Role: "worker", PolicyVersion: 12, TokensPerSecond: 812, LastError: "tool: search: timed out",
				Metrics: map[string]float64{"in_flight": 9, "tool/search/calls": 4, "tool/search/seconds": 6, "tool/search/max": 3, "tool/search/errors": 1}}, Alive: true},
		}},
		Runs: []project.RunOverview{{Open: 20, Status: replay.RunStatus{
			Spec: replay.RunSpec{Run: "demo"}, Latest: replay.Policy{Version: 12}, LastStep: &replay.StepRecord{Step: 12, Metrics: map[string]float64{"reward": 0.8231}},
			RunningGroups: 10, ReadyGroups: 4, LeasedGroups: 8, Appended: logs, FailedRollouts: 2, StalenessCounts: map[uint64]int{0: 92, 1: 8},
		}, Tables: []replay.TableStatus{{Table: "experience", Ready: 5, SampleBlocked: "min_size 10"}}}},
	}
}

func TestTopFrame(t *testing.T) {
	at := time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)
	f := topFrame{before: overview(at, 100), now: overview(at.Add(2*time.Second), 150), width: 150}
	text := renderTop(f)
	want, err := os.ReadFile("testdata/top.txt")
	if os.Getenv("SKEIN_UPDATE") != "" {
		require.NoError(t, os.WriteFile("testdata/top.txt", []byte(text), 0o644))
		want, err = []byte(text), nil
	}
	require.NoError(t, err)
	require.Equal(t, string(want), text)

	f.width, f.height = 40, 6
	text = renderTop(f)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Len(t, lines, 5)
	require.Contains(t, lines[4], "more lines")
	for _, l := range lines {
		require.LessOrEqual(t, utf8.RuneCountInString(l), 40)
	}
}

func TestTopKeepsTheLastLookWhenTheNextFails(t *testing.T) {
	m := &topModel{every: time.Hour}
	_, cmd := m.Update(topLook{o: overview(time.Now(), 1)})
	require.NotNil(t, cmd, "it looks again")
	m.Update(topLook{err: errors.New("cluster: no leader")})
	view := m.View()
	require.Contains(t, view, "! cluster: no leader")
	require.Contains(t, view, "worker-1")
	m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("p")})
	require.Contains(t, m.View(), "paused")
	_, cmd = m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("q")})
	require.Equal(t, tea.Quit(), cmd())
}
