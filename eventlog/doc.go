// Package eventlog is the record of a rollout: what the agent said and did,
// what its tools and the world answered, how it was rewarded, and the exact
// tokens all of that was made of.
//
// # The idea
//
// A [Log] has two halves. Events say what happened, one [Event] a thing, linked
// by Parent into a tree. Branches say in which tokens, one [Branch] a token
// sequence, in columns; an event points into a branch with a [Span]. Readers
// take what they need through projections: supervised rows
// ([Log.DatasetRows]), evaluation ([Log.EvalDict]), audit
// ([Log.AuditRecords]), token masks ([Log.MaskedTokens], [Log.TrainRows]).
//
// # Invariants
//
// [Log.Validate] lists them; [Encode], [Decode] and [Builder.Finish] refuse a
// log that breaks one. The ones the learner lives by:
//
//   - Token ids are those the engine emitted, and each has a logprob slot and a
//     writer: the columns of a branch have one length, checked as they are
//     appended.
//   - A token of a Policy run has a finite logprob and the version of the policy
//     that sampled it. No other token is trainable.
//   - Siblings in the event tree are alternatives. What happened together is
//     chained and told apart by CallID and time.
//   - The accepted history runs from a root to [Log.Outcome]; what lies beside it
//     was rejected, and stays for contrast.
//   - A failure is a status with its cause.
//
// # Bytes
//
// [Encode] writes a frame (magic, version, length, checksum) around a protobuf
// message; docs/format/eventlog.md has the layout. Payloads are canonical JSON:
// keys sorted, numbers as their writer wrote them. [Log.Digest] hashes its own
// canonical serialisation, not those bytes, so it is the same under every
// version of the protobuf library and after any number of re-encodings.
//
// The package is pure: no I/O, no clock, no randomness, no goroutines. Values
// are not safe for concurrent mutation; reading a Log from many goroutines is.
package eventlog
