// Package cluster runs the replay nodes: it replicates what package replay
// stores, admits processes, and gives workers and the learner a replay.Store.
//
// # What goes where
//
// Payload bytes (encoded EventLogs, blobs) go over gRPC streams from the
// leader to every replica's segment files; a write counts when a majority of
// voters has it on disk. Decisions (ids, tickets, leases, steps) go through
// raft into replay's fold, many commands in one write together with the raft
// index they came from. A payload is sent before its id is committed, so a
// committed id has its bytes on a majority; a replica that lacks some pulls
// them from a peer (repair.go).
//
// # One port
//
// A node listens on one TCP port with TLS. The ALPN protocol of a connection
// says whether it carries gRPC ("h2") or raft ("skein-raft"), so the address
// of a raft member is also the address clients use, and there is one thing to
// publish in <dir>/addr.
//
// # Security
//
// The first node makes a certificate authority and a join token. A joining
// process pins the authority by the fingerprint inside the token, presents the
// token's secret once and receives a certificate naming its id and role. Every
// other call needs such a certificate; calls between replay nodes need one of
// role "replay". Replay nodes hold the authority's key, so that any of them
// can admit.
//
// # What survives
//
// Everything acknowledged, while a majority of the replicas' directories
// lives. The liveness table (liveness.go) is memory of the leader and is
// rebuilt from heartbeats.
package cluster
