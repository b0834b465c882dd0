package replay

import (
	"encoding/binary"

	"github.com/skein-rl/skein/replay/internal/keys"
)

// Key spaces of one node's Badger. Everything but 'S' is the node's own and
// differs between replicas.
//
//	S generation key     the fold's state; Restore builds the next generation
//	                     beside the current one and switches in one write
//	X logID digest       payload position: where the bytes are
//	M logID              committed here, bytes not here: to be repaired
//	J seq op key         redo journal of a batch too large for one transaction
//	A name               metadata below
const (
	spaceState   = 'S'
	spacePayload = 'X'
	spaceMissing = 'M'
	spaceJournal = 'J'
	spaceMeta    = 'A'
)

var (
	metaApplied    = []byte("Aapplied")    // u64: last raft index in the state
	metaGeneration = []byte("Ageneration") // u64
	metaTerm       = []byte("Aterm")       // u64: highest term seen
	metaIndexed    = []byte("Aindexed")    // u64 segment, u64 offset: last indexed record
	metaJournal    = []byte("Ajournal")    // present: the journal is complete, redo it
	metaFormat     = []byte("Aformat")     // u64: layout of this file
)

// localFormat is the layout this build reads and writes.
const localFormat = 1

func statePrefix(generation uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{spaceState}, generation)
}

// payloadKey names bytes by id and digest: bytes of an attempt that lost never
// stand in for those of the one that was committed.
func payloadKey(logID, digest string) key { return keys.New(spacePayload).Str(logID).Str(digest) }
func missingKey(logID string) key         { return keys.New(spaceMissing).Str(logID) }

func u64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
