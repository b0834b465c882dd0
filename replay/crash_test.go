package replay

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crashDir names the child's data directory; set, the test binary is the child.
const crashDir = "SKEIN_REPLAY_CRASH_DIR"

// crashChild appends, commits and prints what was acknowledged until it is
// killed.
func crashChild(dir string) {
	o := DefaultLocalOptions()
	o.MinFreeBytes = 0
	o.SegmentBytes = 1 << 20
	fail := func(err error) {
		if err != nil {
			fmt.Println("FAIL", err)
			os.Exit(1)
		}
	}
	l, err := OpenLocal(dir, o)
	fail(err)
	var raft sync.Mutex
	propose := func(c Command) {
		b, err := EncodeCommand(c)
		fail(err)
		raft.Lock()
		defer raft.Unlock()
		_, err = l.ApplyBatch([]Entry{{l.AppliedIndex() + 1, b}})
		fail(err)
	}
	propose(CreateRunCmd{epoch, testSpec})
	gen := l.AppliedIndex()
	for w := range 8 {
		go func() {
			for i := 0; ; i++ {
				var chunk []Record
				for j := range 3 {
					chunk = append(chunk, demoRecord(fmt.Sprintf("%d-%d-%d-%d", gen, w, i, j), 700+i%5000))
				}
				fail(l.PutChunk(context.Background(), gen, chunk))
				propose(AppendItemsCmd{epoch, items(chunk...)})
				fmt.Printf("ACK %s\n", strings.Join(ids(chunk...), " "))
			}
		}()
	}
	// A large batch now and then, so that kills hit the redo journal too.
	for i := 0; ; i++ {
		c := AppendItemsCmd{Now: epoch}
		for j := range 8000 {
			it := demoRecord(fmt.Sprintf("big-%d-%d-%d", gen, i, j), 1).Item
			it.Table = "big"
			c.Items = append(c.Items, it)
		}
		propose(c)
		fmt.Printf("BIG %d\n", len(c.Items))
	}
}

// TestKill9: a process killed while it appends has lost nothing that it
// acknowledged (P1), and its state is that of a whole number of entries.
func TestKill9(t *testing.T) {
	rounds := 3
	if os.Getenv("SKEIN_SLOW") != "" {
		rounds = 40
	}
	var dir string
	var acked map[string]bool
	survived := 0
	for round := range rounds {
		if round%5 == 0 { // a store is killed five times, then left alone
			dir, acked = t.TempDir(), map[string]bool{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		child.Stderr = os.Stderr
		require.NoError(t, child.Start())
		// Killed at another point each time, by what it has done, not by time.
		left := 15 + 11*(round%5) + round
		in := bufio.NewScanner(out)
		for in.Scan() {
			line := in.Text()
			require.False(t, strings.HasPrefix(line, "FAIL"), line)
			if rest, ok := strings.CutPrefix(line, "ACK "); ok {
				for _, id := range strings.Fields(rest) {
					acked[id] = true
				}
			}
			if left--; left == 0 {
				require.NoError(t, child.Process.Kill())
			}
		}
		require.Error(t, child.Wait())
		require.LessOrEqual(t, left, 0, "the child ended by itself")
		cancel()

		l, err := OpenLocal(dir, testOptions())
		require.NoError(t, err)
		var all []string
		for id := range acked {
			all = append(all, id)
		}
		recs, missing, err := l.ReadRecords(all)
		require.NoError(t, err)
		require.Empty(t, missing)
		for i, r := range recs {
			require.Equal(t, all[i], r.Item.LogID)
			require.Equal(t, string(demoRecord(all[i], int(r.Item.Size)).Bytes), string(r.Bytes))
		}
		require.NoError(t, l.View(func(kv Reader) error {
			st, err := Status(kv, "r")
			require.NoError(t, err)
			small, _, err := ScanItems(kv, "r", "demo", "", 1<<30)
			require.NoError(t, err)
			big, _, err := ScanItems(kv, "r", "big", "", 1<<30)
			require.NoError(t, err)
			require.Equal(t, st.Appended, len(small)+len(big), "counter and items are of different entries")
			require.Zero(t, len(small)%3, "part of an entry")
			require.Zero(t, len(big)%8000, "part of an entry")
			return nil
		}))
		requireNoJournal(t, l)
		require.NoError(t, l.Close())
		survived += len(acked)
	}
	require.NotZero(t, survived)
	t.Logf("%d reads of acknowledged logs after %d kills", survived, rounds)
}
