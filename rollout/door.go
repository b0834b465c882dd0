package rollout

import (
	"context"
	"time"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/model"
)

// GenerateRequest asks an engine for one completion, token ids in and token ids
// out. What it points to belongs to the engine until the request has ended; a
// Constraint serves one request only.
type GenerateRequest struct {
	// Session keeps an episode's turns on the same cache; opaque.
	Session string
	Prompt  []int32
	// MaxNew is the most tokens to sample; prompt and MaxNew fit the context.
	MaxNew int
	// Stop ends the completion at any of these ids, which is emitted.
	Stop []int32
	// StopText ends it when its text contains one of these strings; Text is cut
	// before it, IDs end with the token that completed it.
	StopText []string
	Sampling model.Sampling
	// Bias, Constraint, Raw and Top are model.DecodeRow's.
	Bias       []model.TokenBias
	Constraint model.Constraint
	Raw        bool
	Top        int
	// Adapter names one that was loaded beside the policy; "" = the policy.
	Adapter string
	// Version, when set, refuses any other version of the policy, or of the
	// named adapter (evaluation).
	Version *uint64
	// MinVersion refuses older versions (training).
	MinVersion uint64
	// Priority: higher ones take free slots first, equal ones in order of
	// arrival. Nothing that runs is interrupted; a steady flow of higher ones
	// keeps lower ones waiting, until their ctx ends.
	Priority int
}

// Finish says why a completion ended.
type Finish uint8

const (
	FinishStop   Finish = iota // a stop token (included in IDs) or a stop string
	FinishLength               // MaxNew
)

// VersionRun: tokens up to End were sampled under Version.
type VersionRun struct {
	End     int
	Version uint64
	// Stale: they attended to cached tokens of an earlier version (SwapKeep), so
	// their logprobs are not the ones Version alone gives. Never set under
	// SwapRecompute.
	Stale bool
}

// Generation is what the engine emitted.
type Generation struct {
	IDs      []int32
	Logprobs []float32              // of the distribution sampled from
	Raw      []float32              // when asked: of the model's own
	Top      [][]model.TokenLogprob // when asked
	Versions []VersionRun
	Finish   Finish
	// Text is the completion's text, without its stop token or stop string, when
	// the engine has a text side; the first TextTokens ids make it.
	Text       string
	TextTokens int
	// StopText is the stop string that ended the completion, "" when none did.
	StopText string
	// Cached is how many prompt tokens came from a cache.
	Cached int
}

// Engine generates. Safe for concurrent use. Requests of many rollouts share
// one batch; a policy swap takes effect between tokens.
type Engine interface {
	Generate(ctx context.Context, req GenerateRequest) (Generation, error)
	// SetPolicy swaps the adapter in flight; nil adapter = base.
	SetPolicy(version uint64, adapter *model.Adapter) error
	Version() uint64
	// EndSession frees a session's cache.
	EndSession(session string)
	// MaxLen is the context limit in tokens.
	MaxLen() int
	Close() error
}

// Task is one problem of a source.
type Task struct {
	Source string
	ID     string
	// System and User open the conversation.
	System string
	User   string
	Tools  []tool.Spec
	// NewEnv makes the task's private tool environment for one rollout. The
	// calls of one turn run concurrently, so Call is safe for concurrent use.
	NewEnv func() tool.Env
	// InOrder runs the calls of a turn one after another, as the model wrote
	// them: for environments with state, where the order decides the results and
	// a rollout must come out the same whenever it is repeated.
	InOrder bool
	// Score judges the finished episode in [0,1]; error = the reward broke.
	Score func(Episode) (float64, error)
	// TurnScore, when set, judges the episode after each turn whose calls were
	// executed or which ended it; scored false leaves the turn without a reward. An
	// error fails the rollout, as Score's does. The turns of one episode are judged
	// in order; Final and Truncated are as they stand then.
	TurnScore func(Episode) (value float64, scored bool, err error)
	// SingleTurn ends the episode, well, once the calls of its first calling
	// turn are executed: single-call benchmarks judge the call alone.
	SingleTurn bool
	// Demo, when the source has demonstrations, is a correct assistant
	// trajectory for supervised warm-up: alternating assistant calls and the
	// final answer. Tool results come from running Env.
	Demo []Turn
}

// Turn is one assistant turn of a demonstration: calls, or a final text.
type Turn struct {
	Calls []tool.Call
	Text  string
}

// TaskComponent is the name of the task's own score where an episode reward has
// components.
const TaskComponent = "task"

// Scorer judges finished episodes beside the task's own Score: a reward model,
// for one. Its score is a component of the episode's reward, under its name. An
// error fails the rollout with its cause; nothing is scored then. Safe for
// concurrent use.
type Scorer interface {
	Name() string
	Score(ctx context.Context, t Task, e Episode) (float64, error)
	// Timeout bounds one call.
	Timeout() time.Duration
}

// Episode is what a reward sees.
type Episode struct {
	Calls     []tool.Call // executed calls in order
	Results   []string    // their results
	Malformed int         // calls that did not parse
	Final     string      // last assistant text
	Truncated bool
	// Messages is the whole conversation, the last assistant turn as it was written
	// at its end; set for Score and for Scorers.
	Messages []Message
	// Before is how many of Calls were executed before the turn that TurnScore
	// judges.
	Before int
}

// Source yields tasks by index, the same for every node: index i is always the
// same task. Train and held-out indices never meet.
type Source interface {
	Name() string
	Train(i uint64) (Task, error)
	Heldout(i uint64) (Task, error)
	HeldoutSize() int // 0 = unbounded
}
