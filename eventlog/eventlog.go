package eventlog

import "time"

// Kind says what an event is. The eight kinds are closed: a new one is a new
// wire version.
type Kind uint8

// The kinds, in wire order. Zero is no kind and never valid.
const (
	KindUnknown Kind = iota
	Text
	Reasoning
	ToolCall
	ToolResult
	Observation
	TurnComplete
	Reward
	MemoryOp
)

// Tier says how much a log carries: light logs serve evaluation and audit,
// full logs (spans and token columns) serve training as well.
type Tier uint8

const (
	Light Tier = iota
	Full
)

// Scope says what a REWARD event judges. Other kinds carry NoScope.
type Scope uint8

const (
	NoScope Scope = iota
	StepScope
	TurnScope
	EpisodeScope
)

// Status is the outcome of the rollout that wrote the log (P7: a failure is
// recorded data with its cause).
type Status uint8

const (
	StatusUnknown Status = iota
	OK                   // ended by itself
	Truncated            // ended by a token, turn or context limit
	Failed               // broke; Meta.Cause says where and why
	TimedOut             // ended by a deadline
)

// Span is a half-open range [Start, End) of token positions in one branch.
type Span struct {
	Start, End int32
}

// Event is one thing that happened in a rollout.
type Event struct {
	// Seq numbers the events of a log from 1 without holes.
	Seq uint32
	// Parent is the Seq of the event this one follows; 0 for a root. A log is
	// therefore a tree: rejected branches stay beside the accepted one. Two
	// children of one parent are alternatives (or pieces of one, see Partial);
	// things that happened together are chained, and told apart by CallID and
	// time.
	Parent uint32
	Kind   Kind
	// Payload holds JSON values only: nil, bool, string, json.Number or
	// float64/int64, []any, map[string]any. SPEC 1.1 lists the keys of a kind.
	Payload map[string]any
	// Branch indexes Log.Branches and gives Span its columns. Meaningless when
	// Span is nil.
	Branch uint32
	// Span locates the event's tokens; nil when it has none.
	Span *Span
	// Scope is meaningful on Reward events only.
	Scope Scope
	// Author is "agent" (or "agent:<name>" where several act), "human:<id>",
	// "tool:<name>", "env" or "retrieval".
	Author string
	// CallID pairs a ToolResult with its ToolCall: the nearest one above it
	// with the same id.
	CallID string
	// Start and End bound the event in wall time, to the nanosecond; zero when
	// unknown. Two calls whose times overlap ran concurrently.
	Start, End time.Time
	// Partial marks a streamed piece that a later event with the same Parent
	// and Kind completes. Nothing follows a partial, and projections skip it.
	Partial bool
}

// Writer says who wrote a run of tokens. Only Policy tokens are trainable.
type Writer uint8

const (
	WriterUnknown Writer = iota
	Prompt               // the rendered prompt of the episode
	Policy               // sampled by the engine under a policy version
	Environment          // tool results, observations and the template around them
	Expert               // a demonstration: for supervised training, never sampled from a policy of ours
)

// UnknownID stands for a token whose id was not recorded (imported logs that
// hold logprobs only). It may appear in Expert runs alone.
const UnknownID int32 = -1

// Run covers tokens up to End (exclusive) from the end of the run before it.
type Run struct {
	End     int32
	Writer  Writer
	Version uint64 // policy version of a Policy run; 0 in others
}

// Branch is one token sequence of the tree in columns, exactly as the engine
// saw and emitted it (P4: never re-tokenised).
type Branch struct {
	// Parent and Fork say that tokens [0, Fork) equal those of branch Parent,
	// logprobs and writers included. They are repeated here, so that a branch
	// reads alone; a root branch has Parent == its own index and Fork 0, every
	// other one follows its parent.
	Parent uint32
	Fork   int32
	IDs    []int32
	// Logprobs are those of the distribution sampled from (after temperature
	// and filters), in nats: finite and <= 0 in Policy runs, NaN or the
	// teacher's in Expert runs, NaN elsewhere. len(Logprobs) == len(IDs).
	Logprobs []float32
	// Runs partition [0, len(IDs)); neighbours differ in writer or version.
	Runs []Run
	// Accepted says that this branch's outcome is the log's outcome; the
	// others are rejected alternatives. More than one is accepted where a
	// template rewrote history and the trajectory had to fork.
	Accepted bool
}

// Meta identifies a log among its siblings. Group ids are opaque.
type Meta struct {
	Run       string // training run
	Group     string // sibling rollouts of one prompt; never parsed
	Member    uint32 // 0..GroupSize-1
	GroupSize uint32
	Table     string // "train", "eval", ...
	Source    string // task source name
	Task      string // task id within the source
	Attempt   uint32
	Worker    string
	Status    Status
	Cause     string // boundary and reason of a failure: "tool: ...", "engine: ..."
	Created   time.Time
}

// Log is the record of one rollout.
type Log struct {
	ID   string
	Tier Tier
	Meta Meta
	// Outcome is the Seq of the event that ends the accepted history: it and
	// its ancestors are accepted, other events are rejected alternatives or
	// partial pieces. 0 means the last event that is not partial.
	Outcome  uint32
	Events   []Event
	Branches []Branch
}
