package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
)

// TestTrainIsATable: what a learner gets from train is what it would get from a
// configured table of TrainTable's configuration. Each complete group of train
// goes into the twin too, with its task index as the priority; then both are
// leased, released, dropped and committed alike, in runs of their own.
func TestTrainIsATable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := RunSpec{Run: "train", GroupSize: 2, GroupsPerStep: uint32(rapid.IntRange(1, 3).Draw(t, "perStep")),
			MaxStaleness: uint64(rapid.IntRange(0, 2).Draw(t, "staleness")), TicketTTL: time.Hour, MaxAttempts: 1}
		kv := NewMemKV()
		now := epoch
		do := func(c Command) Result {
			res, err := Apply(kv, c)
			require.NoError(t, err)
			return res
		}
		require.NoError(t, do(CreateRunCmd{now, spec}).Err)
		other := spec
		other.Run = "twin"
		require.NoError(t, do(CreateRunCmd{now, other}).Err)
		require.NoError(t, do(SetTableCmd{now, "twin", "x", TrainTable(spec), 0}).Err)

		var open []Ticket
		var lease [2]*Lease
		version, step := uint64(0), uint64(0)
		name := func(i uint64) string { return fmt.Sprint("g", i) }
		for range rapid.IntRange(5, 60).Draw(t, "length") {
			now = now.Add(time.Second)
			switch rapid.SampledFrom([]string{"take", "finish", "finish", "lease", "release", "commit"}).Draw(t, "action") {
			case "take":
				open = append(open, do(TakeTicketsCmd{now, "train", "w", rapid.IntRange(1, 3).Draw(t, "n"), ""}).Tickets...)
			case "finish": // any open group, not in order
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				tk := open[i]
				open = append(open[:i], open[i+1:]...)
				sampled := uint64(rapid.IntRange(int(max(tk.Version, 1)-1), int(version)).Draw(t, "version"))
				in := GroupInsert{Group: name(tk.Index), HasPriority: true, Priority: float64(tk.Index)}
				for _, run := range []string{"train", "twin"} {
					var items []Item
					for m := range uint32(2) {
						it := Item{LogID: fmt.Sprint(run, tk.Index, "-", m), Run: run, Table: "train", Group: tk.Group, GroupSize: 2, Member: m,
							Digest: "d", Size: 1, Status: uint8(eventlog.OK), Tokens: 1, MinVersion: sampled, MaxVersion: version}
						if run == "twin" {
							it.Table = "kept"
							in.LogIDs = append(in.LogIDs, it.LogID)
						}
						items = append(items, it)
					}
					for _, r := range do(AppendItemsCmd{now, items}).Append {
						require.Equal(t, AppendResult{Closed: r.Closed}, r)
					}
				}
				require.Equal(t, AppendResult{}, do(InsertGroupsCmd{now, "twin", "x", []GroupInsert{in}}).Append[0])
			case "lease":
				most := int(spec.MaxStaleness+1) * int(spec.GroupsPerStep)
				q := LeaseRequest{Run: "train", Holder: "l", Groups: rapid.IntRange(1, most).Draw(t, "groups"), LearnerVersion: version, TTL: 20 * time.Second}
				lease[0] = do(AcquireLeaseCmd{now, q}).Lease
				q.Run, q.Table = "twin", "x"
				lease[1] = do(AcquireLeaseCmd{now, q}).Lease
				require.Equal(t, lease[0] == nil, lease[1] == nil)
				if lease[0] == nil {
					continue
				}
				require.Len(t, lease[1].Groups, len(lease[0].Groups))
				for i, g := range lease[0].Groups {
					require.Equal(t, name(g.Index), lease[1].Groups[i].Group)
				}
			case "release", "commit":
				if lease[0] == nil {
					continue
				}
				drop := rapid.SampledFrom([]string{"", "", "bad"}).Draw(t, "drop")
				commit := rapid.Bool().Draw(t, "commit")
				var errs [2]error
				for i, run := range []string{"train", "twin"} {
					if !commit {
						errs[i] = do(ReleaseLeaseCmd{now, run, lease[i].ID, drop}).Err
						continue
					}
					rec := StepRecord{Run: run, Step: step + 1, Version: version + 1, Lease: lease[i].ID, Checkpoint: fmt.Sprint(step + 1), Adapter: "a"}
					if step > 0 {
						rec.PrevCheckpoint = fmt.Sprint(step)
					}
					for _, g := range lease[i].Groups {
						rec.Groups = append(rec.Groups, g.Group)
						for _, it := range g.Items {
							rec.LogIDs = append(rec.LogIDs, it.LogID)
						}
					}
					errs[i] = do(CommitStepCmd{now, rec}).Err
				}
				require.Equal(t, kindOf(errs[0]), kindOf(errs[1]))
				if commit && errs[0] == nil {
					step, version = step+1, version+1
				}
				lease = [2]*Lease{}
			}
			a, err := Status(kv, "train")
			require.NoError(t, err)
			b, err := Tables(kv, "twin")
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(a.ReadyGroups, a.LeasedGroups, a.ConsumedGroups, a.DropReasons), fmt.Sprint(b[1].Ready, b[1].Leased, b[1].Consumed, b[1].Removed))
			c, err := Status(kv, "twin")
			require.NoError(t, err)
			require.Equal(t, a.StalenessCounts, c.StalenessCounts)
		}
	})
}
