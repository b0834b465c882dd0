package replay

import (
	"context"
	"errors"
	"time"
)

// This file is the door of the room: what producers (workers) and the consumer
// (the learner) see, on one node and on three alike. The in-process node and
// the gRPC client of cluster/ both implement Store.

// Errors that callers tell apart. All are returned wrapped with ids.
var (
	// ErrStale: the caller's lease or term is over; drop the work.
	ErrStale = errors.New("replay: stale lease or term")
	// ErrDiskFull: the free-space watermark is reached; retry later. Reads and
	// commits go on.
	ErrDiskFull = errors.New("replay: disk full (free-space watermark)")
	// ErrNotFound: no such log, blob, lease or run.
	ErrNotFound = errors.New("replay: not found")
	// ErrInvalid: the request can never succeed as it is.
	ErrInvalid = errors.New("replay: invalid request")
	// ErrBusy: a table takes no more for now (its rate limiter or bounds say
	// so); append the same records again later.
	ErrBusy = errors.New("replay: table takes no more for now")
	// ErrTimeout: a table could not serve a lease in time; the error says why.
	ErrTimeout = errors.New("replay: not served in time")
	// ErrUnavailable: no leader or no majority before the deadline; retry.
	ErrUnavailable = errors.New("replay: unavailable")
)

// Item is what the index knows of one EventLog. The bytes are elsewhere.
type Item struct {
	LogID      string
	Run        string
	Table      string // "train", "eval", a configured table, or any other: just stored
	Group      string // opaque
	Member     uint32
	GroupSize  uint32
	Source     string
	Task       string
	Attempt    uint32
	Worker     string
	Status     uint8  // eventlog.Status
	Cause      string // failure cause, "" when OK
	MinVersion uint64 // oldest policy version of any sampled token
	MaxVersion uint64
	Tokens     uint32 // sampled tokens
	Reward     float64
	HasReward  bool
	Digest     string // content digest of the EventLog
	Size       uint32 // bytes
	Created    time.Time
}

// Record is an item with its encoded EventLog.
type Record struct {
	Item Item
	// Bytes is the encoded EventLog. What Store returns always has it.
	Bytes []byte
	// Zstd is Bytes as one zstd frame, in its place: how records travel and are
	// stored ([Record.Pack], [Record.Unpack]).
	Zstd []byte
}

// AppendResult says what became of one record, in order of the request.
type AppendResult struct {
	// Duplicate: this LogID, or this (Group, Member), was accepted before, or
	// the group is closed; the first accepted attempt wins and this one is
	// dropped and counted.
	Duplicate bool
	// Rejected says why this record can never be accepted; "" otherwise. A
	// rejected record is counted and leaves its batch's others alone. Append
	// returns the results and an error wrapping ErrInvalid when there is one.
	Rejected string
	// Busy says why a configured table does not take this record now; "" =
	// it does. Nothing of it is kept: append it again later. Append returns
	// the results and an error wrapping ErrBusy when there is one.
	Busy string
	// Closed: the record's group wants no further member; what is still being
	// rolled out of it can be abandoned.
	Closed bool
}

// Ticket is the right to roll out one group until Expires.
type Ticket struct {
	Run       string
	Table     string // "train" or "eval"
	Group     string
	Index     uint64 // position in the task stream; the worker resolves it to a task
	GroupSize uint32
	Attempt   uint32
	Version   uint64 // policy version to sample with at least; eval: exactly
	Greedy    bool   // eval: temperature 0
	// Seed is a fixed function of Table and Index, the same in every attempt;
	// the worker mixes in the run's configured seed and the member.
	Seed    uint64
	Expires time.Time
	// Task is what the run's curriculum picked for the group, the same in every
	// attempt; nil without one: see TaskIndex.
	Task *uint64
	// Done lists the members already accepted from an earlier attempt, in
	// order. A worker may skip them: a second log of theirs is a duplicate.
	Done []uint32
}

// RunSpec registers a training run and its dispatch rules.
type RunSpec struct {
	Run           string
	Config        []byte // resolved config YAML, opaque here
	GroupSize     uint32
	GroupsPerStep uint32
	MaxStaleness  uint64        // in policy versions
	TicketTTL     time.Duration // a group's deadline; then another worker gets it
	MaxAttempts   uint32        // after that the group is closed with what it has
	BaseDigest    string
	// StartAdapter is the blob digest of policy version 0's adapter (a warmed
	// up start); "" starts from the base model.
	StartAdapter string
	// Blobs are others the run needs on every node, such as reward models: they are
	// kept, and repaired, like its adapters.
	Blobs []string
	// Curriculum picks the groups' tasks; nil = in the order of the stream.
	Curriculum *Curriculum
	Stragglers Stragglers
	// KeepCheckpoints is for how many of the last steps the checkpoints are
	// kept: those steps can be recomputed. 0 keeps all. Adapters and logs stay.
	KeepCheckpoints uint32
	// Tenant is whose run it is; "" = the default one's.
	Tenant string
}

// Capacity is how many train groups may be dispatched and not yet consumed.
func (s RunSpec) Capacity() uint64 { return (s.MaxStaleness + 1) * uint64(s.GroupsPerStep) }

// LeaseRequest asks for complete groups no staler than the run's bound at
// LearnerVersion.
type LeaseRequest struct {
	Run string
	// Table is a configured table; "" = train.
	Table string
	// Holder names the learner, the same across its restarts. A request ends
	// the holder's earlier lease of the table and returns its groups first, so that a
	// restarted learner gets the same batch at once (P5).
	Holder string
	// Groups is exactly how many the lease holds, at most
	// (MaxStaleness+1)*GroupsPerStep for train.
	Groups int
	// AtLeast lets a table other than train give fewer; 0 = Groups.
	AtLeast int
	// LearnerVersion is the version that will be trained: the latest, or one
	// more while its commit is on the way.
	LearnerVersion uint64
	TTL            time.Duration
	Wait           time.Duration // how long to wait for enough groups
}

// LeasedGroup lists a group's logs in member order; failed members are listed
// too (they carry their cause), missing ones (group closed early) are not.
type LeasedGroup struct {
	Group string
	Index uint64 // train: of its task; other tables: order of insertion
	Items []Item
	// Of tables other than train: the group's priority, with which probability
	// it was chosen among those left in its stratum and epoch, and how many
	// samples of it were consumed before.
	Priority     float64
	Probability  float64
	TimesSampled uint32
}

func (q LeaseRequest) atLeast() int {
	if q.AtLeast > 0 {
		return q.AtLeast
	}
	return q.Groups
}

// Lease holds groups exclusively until Expires. ID is the fencing token.
type Lease struct {
	ID      uint64
	Run     string
	Holder  string
	Groups  []LeasedGroup
	Expires time.Time
}

// StepRecord is one committed learner step: everything needed to recompute it.
type StepRecord struct {
	Run            string
	Step           uint64
	Version        uint64 // policy version this step published
	Lease          uint64
	LogIDs         []string // trained, in lease order
	Groups         []string
	PrevCheckpoint string // blob digest the step started from
	Checkpoint     string // blob digest it produced
	Adapter        string // blob digest of the adapter it produced
	Metrics        map[string]float64
	Committed      time.Time
}

// Policy is one published policy version.
type Policy struct {
	Run     string
	Version uint64
	Adapter string // blob digest; "" = base without adapter (version 0 of a cold start)
	Step    uint64
}

// Counters of a run, for status and for the learner's guards.
type RunStatus struct {
	Spec            RunSpec
	Latest          Policy
	LastStep        *StepRecord
	ReadyGroups     int
	RunningGroups   int // dispatched and incomplete, whether a ticket is out or not
	LeasedGroups    int
	ConsumedGroups  int
	DroppedGroups   int // too stale, or every member failed
	Appended        int
	Duplicates      int
	FailedRollouts  int
	FailureReasons  map[string]int // by cause; beyond 64 causes "other"
	DropReasons     map[string]int // of groups: "stale", "all_failed", "expired" or what Release said
	LateLogs        int            // arrived after their group was closed; part of Duplicates
	RejectedLogs    int            // could never be accepted (AppendResult.Rejected)
	DeletedLogs     int
	ShrunkGroups    int            // closed at MaxAttempts with fewer members
	StalenessCounts map[uint64]int // of consumed logs: learner version - min version
	Finished        bool
}

// EvalRequest asks the workers to roll out tasks [From, From+Count) greedily
// once each under exactly Version.
type EvalRequest struct {
	Run     string
	Version uint64
	From    uint64
	Count   uint32
}

// EvalStatus is how far an evaluation got. It is over when Done == Requested.
type EvalStatus struct {
	Requested  int
	Done       int     // ended, well or not
	Failed     int     // part of Done: failed, or given up after MaxAttempts
	Scored     int     // part of Done: not failed and with a reward
	MeanReward float64 // over scored logs, 0 when there is none
	Success    float64 // share of scored logs with reward >= 1
	Items      []Item  // by index
}

// Store is the replicated replay store with the run registry beside it.
// Safe for concurrent use. Every call honours ctx's deadline.
type Store interface {
	// CreateRun is idempotent for an equal spec.
	CreateRun(ctx context.Context, spec RunSpec) error
	FinishRun(ctx context.Context, run string) error
	Runs(ctx context.Context) ([]string, error)
	Status(ctx context.Context, run string) (RunStatus, error)

	// TakeTickets hands out up to n groups to roll out, waiting up to wait for
	// the first: evaluations before training, returned groups before new ones,
	// each by index. Dispatch never runs ahead of the staleness bound, and a
	// finished run gives none. serves is the policy version the worker has
	// (AnyVersion: it does not say); one too far behind is ErrStale (CheckServes).
	TakeTickets(ctx context.Context, run, worker string, serves uint64, n int, wait time.Duration) ([]Ticket, error)
	// ReturnTicket gives an unfinished group back at once (a draining worker).
	// Group "" gives up every group that an earlier life of this worker held;
	// that uses up one of each group's attempts.
	ReturnTicket(ctx context.Context, run, group, worker string) error

	// Append returns once every record is durable on a majority and its id is
	// committed (P1).
	Append(ctx context.Context, recs []Record) ([]AppendResult, error)
	// Fetch returns the encoded EventLogs in the order asked.
	Fetch(ctx context.Context, logIDs []string) ([]Record, error)
	// Scan lists items of a run and table after a cursor ("" = start), oldest
	// first, and the next cursor ("" = no more now). A cursor is the LogID of
	// the last item seen, so that a follower can go on from its last item.
	Scan(ctx context.Context, run, table, cursor string, limit int) ([]Item, string, error)
	// DeleteLogs forgets logs for good and returns how many there were; groups
	// that hold one leave their tables, counted under reason. A log whose group
	// is leased or being rolled out is ErrStale, and none is deleted. The bytes
	// go with the next compaction of each node; steps keep the ids.
	DeleteLogs(ctx context.Context, run string, logIDs []string, reason string) (int, error)

	// Lease returns nil and no error when not enough groups of train became
	// ready within Wait; for another table, ErrTimeout with the reason.
	Lease(ctx context.Context, req LeaseRequest) (*Lease, error)
	Extend(ctx context.Context, run string, lease uint64, ttl time.Duration) error
	// Commit consumes the lease and publishes the step's adapter as one
	// decision (P2). Version must be the latest plus one, Step above the last,
	// PrevCheckpoint the last step's Checkpoint. The same record again is a
	// success that changes nothing. A record with Lease 0 trained nothing: it
	// rolls the run back to the policy and checkpoint it names, and what older
	// versions sampled is dropped as stale.
	Commit(ctx context.Context, step StepRecord) error
	// Release returns the groups untouched; drop consumes them untrained with
	// a counted reason instead ("" = return).
	Release(ctx context.Context, run string, lease uint64, drop string) error

	// Step returns the record of a committed step; Latest the newest policy.
	Step(ctx context.Context, run string, step uint64) (StepRecord, error)
	Latest(ctx context.Context, run string) (Policy, error)
	// WaitPolicy returns the first policy newer than after, or the latest one
	// when wait is over.
	WaitPolicy(ctx context.Context, run string, after uint64, wait time.Duration) (Policy, error)

	// PutBlob stores bytes durably on a majority under their blake3 digest
	// ("blake3:<hex>"); GetBlob verifies the digest before returning.
	PutBlob(ctx context.Context, data []byte) (digest string, err error)
	GetBlob(ctx context.Context, digest string) ([]byte, error)

	RequestEval(ctx context.Context, req EvalRequest) error
	EvalStatus(ctx context.Context, run string, version uint64) (EvalStatus, error)

	TableStore
	TenantStore

	Close() error
}
