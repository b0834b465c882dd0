package replay

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay/table"
)

// benchSelectors are what the benchmarks compare.
var benchSelectors = map[string]table.Selector{
	"fifo": {Kind: table.FIFO}, "uniform": {Kind: table.Uniform}, "prioritized": {Kind: table.Prioritized, Exponent: 0.6}, "max_heap": {Kind: table.MaxHeap},
}

// benchSizes: SKEIN_SLOW=1 adds a million groups.
func benchSizes() []int {
	if os.Getenv("SKEIN_SLOW") != "" {
		return []int{1_000, 100_000, 1_000_000}
	}
	return []int{1_000, 100_000}
}

// bench applies commands to a fold in memory or to a node's storage.
type bench struct {
	b     testing.TB
	kv    KV
	local *Local
	index uint64
	items int
}

func (s *bench) apply(c Command) Result {
	if s.local == nil {
		res, err := Apply(s.kv, c)
		require.NoError(s.b, err)
		require.NoError(s.b, res.Err)
		return res
	}
	b, err := EncodeCommand(c)
	require.NoError(s.b, err)
	s.index++
	res, err := s.local.ApplyBatch([]Entry{{s.index, b}})
	require.NoError(s.b, err)
	require.NoError(s.b, res[0].Err)
	return res[0]
}

func newBench(b testing.TB, sel table.Selector, local bool) *bench {
	s := &bench{b: b, kv: NewMemKV()}
	if local {
		opts := DefaultLocalOptions()
		opts.MinFreeBytes, opts.GCInterval = 0, 0
		l, err := OpenLocal(b.TempDir(), opts)
		require.NoError(b, err)
		b.Cleanup(func() { _ = l.Close() })
		s.local = l
	}
	s.apply(CreateRunCmd{epoch, RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Hour, MaxAttempts: 1}})
	cfg := table.Default()
	cfg.Sampler, cfg.MaxTimesSampled = sel, 0
	s.apply(SetTableCmd{epoch, "r", "x", cfg, 0})
	return s
}

// insert appends n groups of one log, 256 a command.
func (s *bench) insert(n int) {
	for n > 0 {
		items := make([]Item, min(n, 256))
		for i := range items {
			s.items++
			id := fmt.Sprintf("run/x/%08d/0/1", s.items)
			items[i] = Item{LogID: id, Run: "r", Table: "x", Group: id, GroupSize: 1, Digest: "blake3:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
				Size: 8192, Status: uint8(eventlog.OK), Tokens: 9, Task: "task", Source: "source", Worker: "worker"}
		}
		s.apply(AppendItemsCmd{epoch, items})
		n -= len(items)
	}
}

// report adds rates: per second of the clock, and of the processors, which other
// programs on the machine disturb less.
func report(b *testing.B, groups int, cpu time.Duration) {
	n := float64(groups * b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "groups/s")
	b.ReportMetric(n/(cpuTime()-cpu).Seconds(), "groups/cpu-s")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func eachBench(b *testing.B, fn func(b *testing.B, s *bench) int) {
	for _, local := range []bool{false, true} {
		for _, n := range benchSizes() {
			for _, name := range []string{"fifo", "uniform", "prioritized", "max_heap"} {
				where := "memory"
				if local {
					where = "badger"
				}
				b.Run(fmt.Sprintf("%s/%s/%d", where, name, n), func(b *testing.B) {
					s := newBench(b, benchSelectors[name], local)
					s.insert(n)
					b.ResetTimer()
					cpu := cpuTime()
					report(b, fn(b, s), cpu)
				})
			}
		}
	}
}

// BenchmarkTableInsert: groups of one log, 256 a command.
func BenchmarkTableInsert(b *testing.B) {
	eachBench(b, func(b *testing.B, s *bench) int {
		for range b.N {
			s.insert(256)
		}
		return 256
	})
}

// BenchmarkTableSample: leases of 32 groups, each ending the one before, so
// that a group is sampled and returned.
func BenchmarkTableSample(b *testing.B) {
	eachBench(b, func(b *testing.B, s *bench) int {
		for range b.N {
			require.NotNil(b, s.apply(AcquireLeaseCmd{epoch, LeaseRequest{Run: "r", Table: "x", Holder: "l", Groups: 32, TTL: time.Hour}}).Lease)
		}
		return 32
	})
}

// BenchmarkTablePriorities: 256 updates a command.
func BenchmarkTablePriorities(b *testing.B) {
	eachBench(b, func(b *testing.B, s *bench) int {
		d := table.Draw{}
		for i := range b.N {
			ups := make([]GroupPriority, 256)
			for j := range ups {
				ups[j] = GroupPriority{fmt.Sprintf("run/x/%08d/0/1", 1+d.Below(uint64(s.items))), float64(i+j) / 7}
			}
			s.apply(UpdatePrioritiesCmd{epoch, "r", "x", ups})
		}
		return 256
	})
}
