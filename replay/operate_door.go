package replay

import (
	"context"
	"io"
	"strings"
	"time"
)

// This file is the part of the door that operators use. The leader's store and
// the gRPC client of cluster/ both implement Operator.

// Operator is what operators do with a store. Safe for concurrent use; every
// call honours ctx's deadline.
type Operator interface {
	// Tail lists items of a run accepted after a token ("" = from the first), in
	// order of acceptance, of one table or ("") all. With none it waits up to
	// wait for the first. Every item comes with the token behind it: each item
	// after a token is listed once, however often the leader changes. ErrStale:
	// the token is of another history (the store was restored from a backup).
	Tail(ctx context.Context, q TailRequest) ([]TailItem, error)
	// TablesWithLogs names the tables that logs of a run were appended to.
	TablesWithLogs(ctx context.Context, run string) ([]string, error)

	// Redact puts twins in the place of logs and returns how many. Each keeps
	// its id, group and reward; the groups that hold one leave their tables,
	// counted under reason, because their tokens are no longer what was
	// sampled. ErrStale: a group is leased or being rolled out, or a log is not
	// the one its twin was made of; then none is redacted. The old bytes go with
	// the next compaction, and no copy of them is taken again.
	Redact(ctx context.Context, run string, twins []Twin, reason string) (int, error)
	// DropTable takes a configured table away, with its groups and settings.
	// The logs stay. ErrStale: groups of it are leased.
	DropTable(ctx context.Context, run, table string) error
	// Import stores logs and groups as they were elsewhere; results are those
	// of Append. What is there already is a duplicate, so that importing again
	// changes nothing.
	Import(ctx context.Context, in Import) (ImportResult, error)

	// Compact rewrites the segments of every node at once: what it drops are
	// the bytes of logs that were deleted or redacted, and those never committed
	// for Grace. It also forgets ids of deleted logs when no node holds bytes.
	Compact(ctx context.Context, q CompactRequest) (CompactResult, error)
	// Verify reads and checks everything on every node, and compares their
	// states as of one raft index.
	Verify(ctx context.Context) (VerifyResult, error)
	// Repair looks for damage on every node and has each pull what it lacks from
	// the others.
	Repair(ctx context.Context) ([]NodeRepair, error)

	// Snapshot streams the state as of one raft index (StateSnapshot.WriteTo).
	// The caller closes it.
	Snapshot(ctx context.Context) (io.ReadCloser, error)
	// ReadExact returns the bytes of logs by id and digest, whether these are
	// the ones in use or not. Those that no node has any more are left out.
	ReadExact(ctx context.Context, logs []Exact) ([]Record, error)
}

// TailRequest says what to follow.
type TailRequest struct {
	Run   string
	Table string // "" = all
	Token string // "" = from the first
	Limit int    // items at most; 0 = 500
	Wait  time.Duration
}

// TailItem is an item with the token behind it.
type TailItem struct {
	Item  Item
	Token string
}

// Twin is a redacted log. It is the encoded EventLog that takes the original's
// place, under the same id.
type Twin struct {
	LogID     string
	OldDigest string // of the original
	Digest    string
	Bytes     []byte
}

// Import is a batch of what an export has written.
type Import struct {
	Run     string
	Records []Record
	Groups  []ImportGroup
	Policy  Policy
}

// ImportGroup is a group of train, eval or a configured table, as TableGroups
// lists it. Its members are stored logs, in order.
type ImportGroup struct {
	Table string
	Group string
	// State is "open", "ready", "consumed" or "dropped"; a leased group is
	// imported as ready. Groups of train that were not trained arrive as dropped,
	// for reason "imported": their run samples for itself.
	State        string
	Reason       string
	Size         uint32
	LogIDs       []string
	Index        uint64 // train and eval: of its task
	Priority     float64
	TimesSampled uint32
	Inserted     time.Time
}

// ImportResult has an entry per record and group.
type ImportResult struct {
	Records []AppendResult
	Groups  []AppendResult
}

// CompactRequest says how thoroughly to compact.
type CompactRequest struct {
	// Grace is how long bytes may wait for their commit; 0 = 1 h.
	Grace time.Duration
	// Dead is the share of a file's bytes from which on it is rewritten. Files
	// with bytes of deleted or redacted logs always are.
	Dead float64
	// ForgetAfter is how long ids of deleted logs are kept, so that late copies
	// stay out; 0 = 24 h, below 0 = for ever.
	ForgetAfter time.Duration
	// Applied is the raft index a node must have reached first; the leader sets
	// it.
	Applied uint64
}

// CompactResult says what every node did.
type CompactResult struct {
	Nodes     []NodeCompaction
	Forgotten int // ids of deleted logs
}

// NodeCompaction is one node's part. Err says why it did nothing, or not all.
type NodeCompaction struct {
	Node string
	Err  string
	CompactReport
}

// VerifyResult compares the nodes.
type VerifyResult struct {
	Index uint64 // raft index at which states were compared
	Nodes []NodeVerification
}

// OK says that every node answered, lacks nothing, and holds the state of its
// shard (a node of one beside the root is named SHARD/NODE).
func (r VerifyResult) OK() bool {
	first := map[string]NodeVerification{"": {Index: r.Index}}
	for _, n := range r.Nodes {
		shard, _, ok := strings.Cut(n.Node, "/")
		if !ok {
			shard = ""
		}
		f, seen := first[shard]
		if !seen || f.Node == "" {
			f = n
			if shard == "" {
				f.Index = r.Index
			}
			first[shard] = f
		}
		if n.Err != "" || n.Missing > 0 || n.Gaps > 0 || n.MissingBlobs > 0 || n.State != f.State || n.Index != f.Index {
			return false
		}
	}
	return len(r.Nodes) > 0
}

// NodeVerification is one node's part.
type NodeVerification struct {
	Node  string
	Err   string
	Index uint64 // raft index of State
	State string // digest of the fold's state there
	Pairs int
	VerifyReport
}

// NodeRepair is one node's part of a repair.
type NodeRepair struct {
	Node      string
	Err       string
	Damaged   int // logs that were damaged or missing
	Pulled    int
	Left      int
	Blobs     int // pulled
	BlobsLeft int
}

// Exact names bytes of a log.
type Exact struct {
	LogID, Digest string
}
