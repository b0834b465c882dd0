package replay

import (
	"errors"
	"fmt"
)

// Result is the fold's answer to one command. Which fields are set follows from
// the command.
type Result struct {
	// Err refuses the command: ErrStale, ErrNotFound or ErrInvalid, wrapped
	// with ids. Refusals are the same on every replica and change nothing.
	Err       error
	Tickets   []Ticket       // TakeTicketsCmd
	Append    []AppendResult // AppendItemsCmd and InsertGroupsCmd, in order of the items; ImportLogsCmd: the groups behind them
	Lease     *Lease         // AcquireLeaseCmd; nil = cannot be served yet
	Blocked   string         // AcquireLeaseCmd: why Lease is nil
	Version   uint64         // SetTableCmd: of the configuration; SetQuotaCmd: of the quota
	Shard     Shard          // SetShardCmd: as it is registered now
	Placement Placement      // PlaceRunCmd: as it is now
	Updated   int            // UpdatePrioritiesCmd, RemoveGroupsCmd, DeleteLogsCmd, RedactLogsCmd, ForgetDeletedCmd: how many were there
}

// AppendError is the error that goes with the results of appending the named
// logs or inserting the named groups: ErrInvalid for the rejected ones and
// ErrBusy for those to be appended again, nil when there are neither.
func AppendError(name func(i int) string, results []AppendResult) error {
	var rejected, busy []error
	for i, r := range results {
		switch {
		case r.Rejected != "":
			rejected = append(rejected, fmt.Errorf("%q: %s", name(i), r.Rejected))
		case r.Busy != "":
			busy = append(busy, fmt.Errorf("%q: %s", name(i), r.Busy))
		}
	}
	var errs []error
	if len(rejected) > 0 {
		errs = append(errs, fmt.Errorf("%w: %d of %d rejected: %w", ErrInvalid, len(rejected), len(results), errors.Join(rejected...)))
	}
	if len(busy) > 0 {
		errs = append(errs, fmt.Errorf("%w: %d of %d to be sent again: %w", ErrBusy, len(busy), len(results), busy[0]))
	}
	return errors.Join(errs...)
}
