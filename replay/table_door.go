package replay

import (
	"context"
	"time"

	"github.com/skein-rl/skein/replay/table"
)

// This file is the part of the door that deals with configured tables. Logs get
// into them by Append (Item.Table names the table) or, when they are stored
// already, by InsertGroups; out of them by Lease, Commit and Release.

// GroupInsert puts logs, stored already, into a table as one group. The same
// logs may stand in several tables.
type GroupInsert struct {
	Group       string // unique in the table
	LogIDs      []string
	HasPriority bool
	Priority    float64 // when HasPriority; otherwise the table's rule
}

// GroupPriority is a priority to set.
type GroupPriority struct {
	Group    string
	Priority float64
}

// TableStatus is a table at a moment. Counts are of groups unless said
// otherwise.
type TableStatus struct {
	Run, Table string
	Config     table.Config
	Version    uint64 // of the configuration
	Set        time.Time

	Open     uint64 // being collected
	Ready    uint64 // can be sampled
	Leased   uint64
	Bytes    uint64 // of the logs of these three
	Inserted uint64 // completed, ever
	Sampled  uint64 // samples consumed, ever
	Consumed uint64 // left after their last sample
	Epoch    uint64 // newest one sampled from

	Removed    map[string]int // left otherwise, by reason
	Refused    map[string]int // logs told to come back, by what was full
	Duplicates uint64         // logs

	// InsertBlocked and SampleBlocked say why a group would not be admitted,
	// or one not be sampled, at this moment; "" = it would.
	InsertBlocked string
	SampleBlocked string
	// Indexing: the structures of a new configuration are being built.
	Indexing bool
}

// TableGroup is a group of a table.
type TableGroup struct {
	Group        string
	State        string // "open", "ready", "leased", "consumed" or "dropped"
	Reason       string // why it was dropped
	Seq          uint64 // order of insertion
	Size         uint32 // members it is to have; of open, ready and leased ones
	LogIDs       []string
	Priority     float64
	TimesSampled uint32
	Inserted     time.Time
	Bytes        uint64
	Lease        uint64
}

// TableStore is the part of Store for configured tables.
type TableStore interface {
	// SetTable creates a table (version 0) or replaces its configuration,
	// whose version the caller has read: ErrStale when it is another by now.
	// It returns the new version. The change holds from the next call on;
	// structures that have to be built anew are built in the background, and
	// until then the table does not sample.
	SetTable(ctx context.Context, run, name string, cfg table.Config, version uint64) (uint64, error)
	// Tables lists the tables of a run: train (configuration 0: it follows
	// from the spec), then the configured ones by name. TableHistory gives
	// every configuration one had, oldest first.
	Tables(ctx context.Context, run string) ([]TableStatus, error)
	TableHistory(ctx context.Context, run, name string) ([]TableVersion, error)
	// TableGroups lists groups by name after a cursor ("" = start), and the
	// next cursor ("" = no more).
	TableGroups(ctx context.Context, run, name, cursor string, limit int) ([]TableGroup, string, error)

	// InsertGroups puts stored logs into a table. Results and errors are those
	// of Append, per group.
	InsertGroups(ctx context.Context, run, name string, groups []GroupInsert) ([]AppendResult, error)
	// UpdatePriorities sets priorities and returns how many of the groups were
	// still there. One that the table cannot use (see table.Config) is
	// ErrInvalid, and none is set.
	UpdatePriorities(ctx context.Context, run, name string, updates []GroupPriority) (int, error)
	// RemoveGroups takes groups out of a table, counted under reason, and
	// returns how many were there. The logs stay. A leased one is ErrStale,
	// and none is removed.
	RemoveGroups(ctx context.Context, run, name string, groups []string, reason string) (int, error)
}

// TableVersion is one configuration of a table.
type TableVersion struct {
	Version uint64
	Config  table.Config
	Set     time.Time
}
