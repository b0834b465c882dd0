package main

import (
	"context"
	"fmt"
	"time"

	"github.com/skein-rl/skein/replay"
)

// keep is one round of an operator: all nodes compact their segments, as they
// do once a day, and then compare their states and what they hold.
func (a *actor) keep(every time.Duration) {
	select {
	case <-a.w.ctx.Done():
		return
	case <-time.After(every):
	}
	// As short as a node allows: an append takes 10 s at most.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	op := a.begin("compact", "", "")
	_, err := a.Compact(ctx, replay.CompactRequest{Grace: 11 * time.Second, Dead: 0.02})
	a.h.end(op, err)
	op = a.begin("verify", "", "")
	res, err := a.Verify(ctx)
	a.h.end(op, err)
	if err != nil {
		return
	}
	// Under faults a node may lack something, or not answer; what answers at the
	// same index must agree.
	states := map[string]string{}
	for _, n := range res.Nodes {
		if n.Err == "" && n.Index == res.Index {
			states[n.State] = n.Node
		}
	}
	if len(states) > 1 {
		a.h.violation(fmt.Sprintf("nodes hold different states at raft index %d: %v", res.Index, states))
	}
}
