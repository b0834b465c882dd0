package replay

import "encoding/binary"

// Keys of the fold's state. A key is a tag byte followed by components: strings
// are escaped so that no id, whatever its bytes, can run into the next
// component, and numbers are big-endian so that key order is number order.
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
//	h run holder                   lease
//	d run step                     StepRecord
//	p run version                  Policy
//	e run version                  EvalState
//	v run version                  -           evaluations with indexes left
//	n run version index            logID       logs of an evaluation
//	x expires run group lease      Expiry
type key []byte

func newKey(tag byte) key { return append(make(key, 0, 64), tag) }

// str appends an escaped string: 0x00 becomes 0x00 0xff, the end is 0x00 0x01.
func (k key) str(s string) key {
	for i := 0; i < len(s); i++ {
		k = append(k, s[i])
		if s[i] == 0 {
			k = append(k, 0xff)
		}
	}
	return append(k, 0, 1)
}

func (k key) u64(n uint64) key { return binary.BigEndian.AppendUint64(k, n) }

// Classes of the queue 'q': evaluation goes first.
const (
	classEval  = 0
	classTrain = 1
)

func runKey(run string) key          { return newKey('r').str(run) }
func configKey(run string) key       { return newKey('c').str(run) }
func groupKey(run, group string) key { return newKey('g').str(run).str(group) }
func itemKey(logID string) key       { return newKey('l').str(logID) }
func scanPrefix(run, table string) key {
	return newKey('i').str(run).str(table)
}
func queuePrefix(run string, class uint64) key { return newKey('q').str(run).u64(class) }
func queueKey(run string, class, version, index uint64, group string) key {
	return queuePrefix(run, class).u64(version).u64(index).str(group)
}
func readyPrefix(run string) key               { return newKey('y').str(run) }
func readyKey(run string, index uint64) key    { return readyPrefix(run).u64(index) }
func ticketPrefix(run, worker string) key      { return newKey('t').str(run).str(worker) }
func ticketKey(run, worker, group string) key  { return ticketPrefix(run, worker).str(group) }
func workerKey(run, worker string) key         { return newKey('w').str(run).str(worker) }
func leasePrefix(run string) key               { return newKey('s').str(run) }
func leaseKey(run string, lease uint64) key    { return leasePrefix(run).u64(lease) }
func holderKey(run, holder string) key         { return newKey('h').str(run).str(holder) }
func stepPrefix(run string) key                { return newKey('d').str(run) }
func stepKey(run string, step uint64) key      { return stepPrefix(run).u64(step) }
func policyPrefix(run string) key              { return newKey('p').str(run) }
func policyKey(run string, version uint64) key { return policyPrefix(run).u64(version) }
func evalKey(run string, version uint64) key   { return newKey('e').str(run).u64(version) }
func evalOpenPrefix(run string) key            { return newKey('v').str(run) }
func evalOpenKey(run string, v uint64) key     { return evalOpenPrefix(run).u64(v) }
func evalLogPrefix(run string, v uint64) key   { return newKey('n').str(run).u64(v) }
func evalLogKey(run string, v, index uint64) key {
	return evalLogPrefix(run, v).u64(index)
}

// expiryKey orders by time; times before 1970 don't occur.
func expiryKey(expires int64, run, group string, lease uint64) key {
	return newKey('x').u64(uint64(expires)).str(run).str(group).u64(lease)
}

// unescape reads the first string component of b.
func unescape(b []byte) string {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == 0 {
			i++
			if i >= len(b) || b[i] == 1 {
				break
			}
			out = append(out, 0)
			continue
		}
		out = append(out, b[i])
	}
	return string(out)
}

// versionOf reads the number a key ends with.
func versionOf(k []byte) uint64 { return binary.BigEndian.Uint64(k[len(k)-8:]) }
