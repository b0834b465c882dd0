package replay

// Result is the fold's answer to one command. Which fields are set follows from
// the command.
type Result struct {
	// Err refuses the command: ErrStale, ErrNotFound or ErrInvalid, wrapped
	// with ids. Refusals are the same on every replica and change nothing.
	Err     error
	Tickets []Ticket       // TakeTicketsCmd
	Append  []AppendResult // AppendItemsCmd and InsertGroupsCmd, in order of the items
	Lease   *Lease         // AcquireLeaseCmd; nil = cannot be served yet
	Blocked string         // AcquireLeaseCmd: why Lease is nil
	Version uint64         // SetTableCmd: of the configuration
	Updated int            // UpdatePrioritiesCmd, RemoveGroupsCmd: groups that were there
}
