package actors

import (
	"context"
	"time"
)

// The roles of a node. Each names its loop for logs and status, and says how
// long it may take to come to a safe point when drained.

// Worker rolls out groups. Draining returns or finishes the groups in hand.
func Worker(run func(context.Context) error, report func() Report) Role {
	return Role{Name: "worker", Run: run, Report: report, DrainTimeout: 20 * time.Second}
}

// Learner trains leased groups. Draining gives the lease back.
func Learner(run func(context.Context) error, report func() Report) Role {
	return Role{Name: "learner", Run: run, Report: report, DrainTimeout: 20 * time.Second}
}

// Scheduler closes a run whose work is done. Dispatch itself is a rule of the
// replicated fold and needs no process.
func Scheduler(run func(context.Context) error) Role {
	return Role{Name: "scheduler", Run: run, DrainTimeout: 5 * time.Second}
}

// ReplayNode keeps one replica of the store.
func ReplayNode(run func(context.Context) error, report func() Report) Role {
	return Role{Name: "replay", Run: run, Report: report, DrainTimeout: 30 * time.Second}
}
