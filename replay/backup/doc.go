// Package backup copies a replay store, while it is in use, to a folder or an
// object store, and gives it back.
//
// # What a backup is
//
// The state as of one raft index, with the bytes of every log and blob that it
// names. A target holds any number of backups, by name:
//
//	skein-backup.json      what this place is
//	backups/NAME.json      one backup: index, state pieces, packs, blobs (Manifest)
//	states/DIGEST          a piece of a state snapshot
//	packs/DIGEST           bytes of many logs
//	packs/DIGEST.idx       which logs are in it
//	blobs/DIGEST           a checkpoint or an adapter
//
// Everything but the manifests is named by the BLAKE3 digest of its contents, so
// a backup copies only what no earlier one has, an interrupted one goes on where
// it stopped, and every object is verified when it is read. The manifest comes
// last: until then nothing refers to what was copied.
//
// # What leaves a target
//
// Prune takes backups away, then what none of the others refers to. Logs that
// were deleted or redacted in the store since stay in older backups until those
// are pruned; Prune with Purge rewrites the packs that other backups share.
package backup
