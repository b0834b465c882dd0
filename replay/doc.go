// Package replay is the replay store: what a run has dispatched, collected,
// leased and trained, and the bytes of every EventLog behind it.
//
// # One fold
//
// The whole coordination of a run (dispatch, group completeness, leases, steps,
// policies, evaluations) is one pure function, [Apply], over a key-value store.
// It reads no clock (every command carries one), draws no random number and
// iterates no Go map, so replicas that apply the same commands hold the same
// bytes. cluster/ orders the commands through raft; there is no scheduler
// process that could be lost.
//
// A group's life:
//
//	          ticket            complete            lease           commit
//	(index) ----------> running ---------> ready ----------> leased -------> consumed
//	            ^          |    expired      |  too stale      | expired,
//	            |          v                 v                 | released
//	            +------ pending           dropped              v
//	                       | MaxAttempts                     ready
//	                       v
//	            ready (>= 2 members) or dropped
//
// Invariants, each with a test:
//   - a group reaches the learner once, whole, and no staler than the bound;
//   - groups on their way never exceed (MaxStaleness+1)*GroupsPerStep, whatever
//     the version is, so that a recovered run is not flooded;
//   - the first accepted log of a member wins, every later one is counted;
//   - a lease is committed only while it is live and only for the next version,
//     and the same commit again is a success that changes nothing.
//
// # One node
//
// [Local] keeps the fold's state in Badger and the bytes in append-only segment
// files (replay/segment) and content-addressed blob files (replay/blob). What
// survives a crash: every payload whose PutChunk returned, every blob whose
// PutBlob returned, and the fold as of AppliedIndex.
package replay
