package rollout

import (
	"context"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// Heartbeat is a worker's state at one moment.
type Heartbeat struct {
	Worker  string
	Run     string
	At      time.Time
	Version uint64 // policy version served
	Adapter string // its blob digest, verified after loading; "" = base
	Latest  uint64 // newest policy version known
	Groups  int    // in flight
	Members int    // rollouts in flight
	// Counters since the worker started.
	Rollouts, Failed, Appended, Duplicates, Rejected, Lost uint64
	// Abandoned rollouts of groups that became complete without them.
	Abandoned uint64
	Engine    EngineStats // zero when the engine keeps none
	Loop      LoopStats
	// TokensPerSecond is sampled tokens over the interval since the last
	// heartbeat.
	TokensPerSecond float64
	LastError       string
	LastErrorAt     time.Time
}

// Hooks are called at the worker's moments, from its goroutines; they must be
// quick and safe for concurrent use. Nil fields are skipped.
type Hooks struct {
	Ticket    func(replay.Ticket)
	Rollout   func(*eventlog.Log)
	Appended  func(replay.Item, replay.AppendResult)
	Policy    func(version uint64, adapter string)
	Heartbeat func(Heartbeat)
	// Error reports what went wrong and is retried or recorded; op names the
	// boundary: "take", "policy", "append", "return", "task", "rollout".
	Error func(op string, err error)
}

// Snapshot is the worker's state now. TokensPerSecond is that of the last
// heartbeat.
func (w *Worker) Snapshot() Heartbeat {
	serving, latest := w.gate.current()
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.state
	h.At = w.parts.Now()
	h.Version, h.Adapter, h.Latest = serving.version, serving.digest, latest.version
	h.Loop = w.loop.Stats()
	if e, ok := w.parts.Engine.(interface{ Stats() EngineStats }); ok {
		h.Engine = e.Stats()
	}
	return h
}

func (w *Worker) beat(ctx context.Context) {
	tick := time.NewTicker(w.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := w.Snapshot()
		w.mu.Lock()
		if s := h.At.Sub(w.last.at).Seconds(); !w.last.at.IsZero() && s > 0 {
			w.state.TokensPerSecond = float64(h.Engine.Generated-w.last.tokens) / s
		}
		w.last.at, w.last.tokens = h.At, h.Engine.Generated
		h.TokensPerSecond = w.state.TokensPerSecond
		w.mu.Unlock()
		if w.hooks.Heartbeat != nil {
			w.hooks.Heartbeat(h)
		}
	}
}
