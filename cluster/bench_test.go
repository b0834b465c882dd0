package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// BenchmarkAppend: closed-loop producers, one log an append, three nodes in
// this process over TLS, or one without.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{8 << 10, 64 << 10} {
		for _, producers := range []int{16, 256} {
			for _, nodes := range []int{1, 3} {
				b.Run(fmt.Sprintf("%dKB/w=%d/r%d", size>>10, producers, nodes), func(b *testing.B) {
					s := benchStore(b, nodes)
					b.SetParallelism(max(producers/2, 1)) // times GOMAXPROCS
					b.SetBytes(int64(size))
					var id atomic.Int64
					rec := testRecord("r", "x", size)
					b.ResetTimer()
					b.RunParallel(func(p *testing.PB) {
						for p.Next() {
							r := rec
							r.Item.LogID = fmt.Sprint("log", id.Add(1))
							if _, err := s.Append(context.Background(), []replay.Record{r}); err != nil {
								b.Error(err)
								return
							}
						}
					})
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "logs/s")
				})
			}
		}
	}
}

func benchStore(b *testing.B, nodes int) replay.Store {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conf := func(i int) Config {
		c := DefaultConfig(filepath.Join(b.TempDir(), fmt.Sprint("n", i)))
		c.ID = fmt.Sprint("n", i)
		c.Store.MinFreeBytes = 0
		c.Tick = 50 * time.Millisecond
		return c
	}
	if nodes == 1 {
		n, err := OpenLocal(conf(0))
		require.NoError(b, err)
		b.Cleanup(func() { _ = n.Close() })
		require.NoError(b, n.Store().CreateRun(ctx, testSpec("r")))
		return n.Store()
	}
	first, err := Open(ctx, conf(0))
	require.NoError(b, err)
	b.Cleanup(func() { _ = first.Close() })
	for i := 1; i < nodes; i++ {
		c := conf(i)
		c.Join, c.Token = []string{first.Addr()}, first.Identity().Token().Reveal()
		n, err := Open(ctx, c)
		require.NoError(b, err)
		b.Cleanup(func() { _ = n.Close() })
	}
	require.NoError(b, first.WaitReady(ctx, nodes))
	cl, err := Connect(ctx, JoinConfig{Addrs: []string{first.Addr()}, Token: first.Identity().Token(), ID: "w", Role: RoleWorker, Dir: b.TempDir()})
	require.NoError(b, err)
	b.Cleanup(func() { _ = cl.Close() })
	require.NoError(b, cl.CreateRun(ctx, testSpec("r")))
	return cl
}
