package replay

import (
	"encoding/binary"

	"github.com/skein-rl/skein/replay/internal/keys"
)

// Keys of the fold's state (see keys.Key). Tables of a run other than train and
// eval have keys of their own; the parts below k are table.Set's.
//
//	r run                          RunState
//	c run                          config, as the spec has it
//	g run group                    GroupState
//	l logID                        ItemState
//	i run table seq                logID       Scan order
//	q run class order group        -           groups that wait for a worker
//	y run index                    group       groups that wait for the learner
//	t run worker group             -           tickets that are out
//	w run worker                   WorkerState
//	s run lease                    LeaseState
//	h run holder [table]           lease
//	d run step                     StepRecord
//	p run version                  Policy
//	e run version                  EvalState
//	v run version                  -           evaluations with indexes left
//	n run version index            logID       logs of an evaluation
//	x expires run group lease      Expiry
//	x expires run group 0 table    Expiry      of a table's group, or its sweep
//	T run table                    TableState
//	U run table version            TableConfig every configuration it had
//	m run table group              TableItem
//	u run table key                group       dedupe
//	b logID table group            -           groups a log was inserted into
//	k run table generation index   selection structures
//	D deleted logID                -           what remains of deleted logs, by time
//	N tenant                       TenantState
//	C run task                     TaskState   of a curriculum
//	S shard                        Shard       the root: the others; others: the root
//	P run                          Placement   in the root
//	M run                          Gone        of a run that lives in another shard
//
// What a move between shards carries of a run is in RunPairs: a new key with a
// run in it belongs there too.
type key = keys.Key

// Classes of the queue 'q': evaluation goes first.
const (
	classEval  = 0
	classTrain = 1
)

func runKey(run string) key          { return keys.New('r').Str(run) }
func configKey(run string) key       { return keys.New('c').Str(run) }
func groupKey(run, group string) key { return keys.New('g').Str(run).Str(group) }
func itemKey(logID string) key       { return keys.New('l').Str(logID) }
func scanPrefix(run, table string) key {
	return keys.New('i').Str(run).Str(table)
}
func queuePrefix(run string, class uint64) key { return keys.New('q').Str(run).U64(class) }
func queueKey(run string, class, version, index uint64, group string) key {
	return queuePrefix(run, class).U64(version).U64(index).Str(group)
}
func readyPrefix(run string) key              { return keys.New('y').Str(run) }
func readyKey(run string, index uint64) key   { return readyPrefix(run).U64(index) }
func ticketPrefix(run, worker string) key     { return keys.New('t').Str(run).Str(worker) }
func ticketKey(run, worker, group string) key { return ticketPrefix(run, worker).Str(group) }
func workerKey(run, worker string) key        { return keys.New('w').Str(run).Str(worker) }
func leasePrefix(run string) key              { return keys.New('s').Str(run) }
func leaseKey(run string, lease uint64) key   { return leasePrefix(run).U64(lease) }

// holderKey names a holder's lease; of a table other than train it is longer.
func holderKey(run, holder, table string) key {
	k := keys.New('h').Str(run).Str(holder)
	if table != "" {
		k = k.Str(table)
	}
	return k
}
func stepPrefix(run string) key                { return keys.New('d').Str(run) }
func stepKey(run string, step uint64) key      { return stepPrefix(run).U64(step) }
func policyPrefix(run string) key              { return keys.New('p').Str(run) }
func policyKey(run string, version uint64) key { return policyPrefix(run).U64(version) }
func evalKey(run string, version uint64) key   { return keys.New('e').Str(run).U64(version) }
func evalOpenPrefix(run string) key            { return keys.New('v').Str(run) }
func evalOpenKey(run string, v uint64) key     { return evalOpenPrefix(run).U64(v) }
func evalLogPrefix(run string, v uint64) key   { return keys.New('n').Str(run).U64(v) }
func evalLogKey(run string, v, index uint64) key {
	return evalLogPrefix(run, v).U64(index)
}

// expiryKey orders by time; times before 1970 don't occur.
func expiryKey(expires int64, run, group string, lease uint64) key {
	return keys.New('x').U64(uint64(expires)).Str(run).Str(group).U64(lease)
}

// tableExpiryKey is expiryKey of a table's group, or of its sweep.
func tableExpiryKey(expires int64, run, group, table string) key {
	return expiryKey(expires, run, group, 0).Str(table)
}

func taskKey(run string, task uint64) key { return taskPrefix(run).U64(task) }
func taskPrefix(run string) key           { return keys.New('C').Str(run) }

func shardKey(name string) key    { return keys.New('S').Str(name) }
func placementKey(run string) key { return keys.New('P').Str(run) }
func goneKey(run string) key      { return keys.New('M').Str(run) }

func tenantKey(tenant string) key { return keys.New('N').Str(tenant) }

func tablePrefix(run string) key              { return keys.New('T').Str(run) }
func tableKey(run, table string) key          { return tablePrefix(run).Str(table) }
func tableConfigPrefix(run, table string) key { return keys.New('U').Str(run).Str(table) }
func tableItemPrefix(run, table string) key   { return keys.New('m').Str(run).Str(table) }
func tableItemKey(run, table, group string) key {
	return tableItemPrefix(run, table).Str(group)
}

// referencePrefix is of the groups a log was inserted into.
func referencePrefix(logID string) key { return keys.New('b').Str(logID) }

func sameKey(run, table, as string) key { return keys.New('u').Str(run).Str(table).Str(as) }
func generationPrefix(run, table string, generation uint64) key {
	return keys.New('k').Str(run).Str(table).U64(generation)
}

// deletedKey orders deleted logs by time.
func deletedKey(at int64, logID string) key { return keys.New('D').U64(uint64(at)).Str(logID) }

// versionOf reads the number a key ends with.
func versionOf(k []byte) uint64 { return binary.BigEndian.Uint64(k[len(k)-8:]) }
