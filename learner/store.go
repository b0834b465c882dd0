package learner

import (
	"context"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Store is what the learner needs of the replay store; replay.Store has it all.
type Store interface {
	Status(ctx context.Context, run string) (replay.RunStatus, error)
	Lease(ctx context.Context, req replay.LeaseRequest) (*replay.Lease, error)
	Extend(ctx context.Context, run string, lease uint64, ttl time.Duration) error
	Release(ctx context.Context, run string, lease uint64, drop string) error
	Fetch(ctx context.Context, logIDs []string) ([]replay.Record, error)
	PutBlob(ctx context.Context, data []byte) (string, error)
	GetBlob(ctx context.Context, digest string) ([]byte, error)
	Commit(ctx context.Context, step replay.StepRecord) error
	Step(ctx context.Context, run string, step uint64) (replay.StepRecord, error)
	RequestEval(ctx context.Context, req replay.EvalRequest) error
}

// The in-process node and the cluster's client are both such stores.
var _ Store = replay.Store(nil)
