package project

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
)

func TestLeaderOf(t *testing.T) {
	node := func(id, run string, leads, alive bool) cluster.NodeStatus {
		return cluster.NodeStatus{NodeInfo: cluster.NodeInfo{ID: id, Role: cluster.RoleLearner, Run: run, Leads: leads}, Alive: alive}
	}
	worker := node("a", "r", true, true)
	worker.Role = cluster.RoleWorker
	for _, c := range []struct {
		name string
		view []cluster.NodeStatus
		want string
	}{
		{"nobody", nil, ""},
		{"the first by id", []cluster.NodeStatus{node("c", "r", false, true), node("b", "r", false, true)}, "b"},
		{"who leads goes on", []cluster.NodeStatus{node("c", "r", true, true), node("b", "r", false, true)}, "c"},
		{"of two leaders the first", []cluster.NodeStatus{node("c", "r", true, true), node("b", "r", true, true)}, "b"},
		{"the dead do not lead", []cluster.NodeStatus{node("b", "r", true, false), node("c", "r", false, true)}, "c"},
		{"nor those of other runs, nor workers", []cluster.NodeStatus{node("a", "other", true, true), worker, node("d", "r", false, true)}, "d"},
	} {
		require.Equal(t, c.want, leaderOf(c.view, "r"), c.name)
	}
}
