package sim

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

var (
	seeds = flag.Int("sim.seeds", 20, "how many seeds TestSeeds runs")
	first = flag.Uint64("sim.seed", 1, "the first of them")
	trace = flag.Bool("sim.trace", false, "print every command and fault")
)

// simulate runs one seed; its error says how to see it again.
func simulate(seed uint64) (Report, error) {
	c := Draw(seed)
	if *trace {
		c.Trace = os.Stderr
	}
	rep, err := Run(c)
	if err != nil {
		err = fmt.Errorf("%w\nagain: go test ./internal/sim -run TestSeeds -sim.seeds 1 -sim.seed %d -sim.trace", err, seed)
	}
	return rep, err
}

// TestSeeds runs clusters with faults; every promise is audited in each.
func TestSeeds(t *testing.T) {
	faults, commands, lost, stale := map[string]int{}, map[string]int{}, 0, 0
	var virtual time.Duration
	for i := range *seeds {
		rep, err := simulate(*first + uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		for k, n := range rep.Faults {
			faults[k] += n
		}
		for k, n := range rep.Commands {
			commands[k] += n
		}
		for _, st := range rep.Status {
			stale += st.DropReasons["stale"]
		}
		lost += rep.Lost
		virtual += rep.Virtual
	}
	t.Logf("%d seeds, %v of virtual time: faults %v, commands %v, %d messages lost, %d groups too stale", *seeds, virtual.Round(time.Second), faults, commands, lost, stale)
	if *seeds < 20 {
		return
	}
	for _, kind := range []string{"worker", "node", "drain", "slow", "partition", "learner", "leader", "garbage"} {
		require.Positive(t, faults[kind], "no fault of kind %s", kind)
	}
}

// TestSeedReplaysExactly: the same seed is the same history, another one is not.
func TestSeedReplaysExactly(t *testing.T) {
	a, err := simulate(7)
	require.NoError(t, err)
	b, err := simulate(7)
	require.NoError(t, err)
	require.Equal(t, a, b)
	other, err := simulate(8)
	require.NoError(t, err)
	require.NotEqual(t, a.Hash, other.Hash)

	var one, two bytes.Buffer
	c := Draw(9)
	c.Trace = &one
	_, err = Run(c)
	require.NoError(t, err)
	c.Trace = &two
	_, err = Run(c)
	require.NoError(t, err)
	require.Equal(t, one.Len(), two.Len())
	require.True(t, bytes.Equal(one.Bytes(), two.Bytes()))
}

// TestThousandsOfWorkers: 1,500 workers on 150 machines, with faults.
func TestThousandsOfWorkers(t *testing.T) {
	c := Default()
	c.Seed, c.Workers, c.Nodes, c.Groups, c.Learners = 5, 1500, 150, 1, 2
	c.Spec.GroupSize, c.Spec.GroupsPerStep, c.Spec.MaxStaleness, c.Steps = 2, 400, 3, 4
	c.Net.Loss, c.Net.Repeat = .01, .01
	c.Faults = Faults{Worker: time.Second, Node: 5 * time.Second, Drain: time.Second, Slow: time.Second, Partition: time.Second,
		Learner: 20 * time.Second, Leader: 10 * time.Second, Garbage: time.Second, Down: Spread{5 * time.Second, 1}}
	rep, err := Run(c)
	require.NoError(t, err)
	require.Equal(t, []uint64{4}, rep.Steps)
	t.Logf("%v of virtual time: faults %v, commands %v", rep.Virtual.Round(time.Second), rep.Faults, rep.Commands)
}

// TestAuditFindsBrokenFolds: a fold that breaks a promise is caught, each by
// the promise it breaks.
func TestAuditFindsBrokenFolds(t *testing.T) {
	early := func(kv replay.KV, now time.Time) {
		_, _ = replay.Apply(kv, replay.TickCmd{Now: now.Add(time.Hour)})
	}
	n := 0
	for name, m := range map[string]struct {
		want  string
		apply func(replay.KV, replay.Command) (replay.Result, error)
	}{
		"forgets a log it acknowledged": {"P1", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if c, ok := cmd.(replay.AppendItemsCmd); ok && c.Items[0].Attempt > 0 {
				if n++; n%50 == 0 {
					return replay.Result{Append: make([]replay.AppendResult, len(c.Items))}, nil
				}
			}
			return replay.Apply(kv, cmd)
		}},
		"trains again what it said was committed": {"P2", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if c, ok := cmd.(replay.CommitStepCmd); ok && c.Step.Step == 3 {
				return replay.Result{}, nil
			}
			return replay.Apply(kv, cmd)
		}},
		"ends leases early": {"P2", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if _, ok := cmd.(replay.AcquireLeaseCmd); ok {
				early(kv, cmd.Clock())
			}
			return replay.Apply(kv, cmd)
		}},
		"hands a group to a second worker": {"tickets", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if _, ok := cmd.(replay.TakeTicketsCmd); ok {
				early(kv, cmd.Clock())
			}
			return replay.Apply(kv, cmd)
		}},
		"dispatches above its capacity": {"capacity", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if c, ok := cmd.(replay.CreateRunCmd); ok {
				c.Spec.MaxStaleness += 2
				cmd = c
			}
			return replay.Apply(kv, cmd)
		}},
		"believes tokens newer than they are": {"P3", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if c, ok := cmd.(replay.AppendItemsCmd); ok {
				items := append([]replay.Item(nil), c.Items...)
				p, err := replay.Latest(kv, items[0].Run)
				if err != nil {
					return replay.Result{}, err
				}
				for i := range items {
					items[i].MinVersion, items[i].MaxVersion = p.Version, max(p.Version, items[i].MaxVersion)
				}
				cmd = replay.AppendItemsCmd{Now: c.Now, Items: items}
			}
			return replay.Apply(kv, cmd)
		}},
		"loses a member": {"P3", func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			res, err := replay.Apply(kv, cmd)
			if res.Lease != nil {
				g := &res.Lease.Groups[0]
				g.Items = g.Items[:1]
			}
			return res, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			c.Seed, c.Learners, c.Steps, c.Apply = 3, 2, 40, m.apply
			c.Rollout.Sigma, c.Spec.MaxStaleness, c.Workers = 1.5, 1, 8
			c.Faults.Learner, c.Faults.Down = time.Minute, Spread{5 * time.Second, 0}
			if m.want == "P3" {
				c.Learners, c.Spec.GroupSize, c.Rollout = 1, 2, Spread{4 * time.Second, 2}
			}
			_, err := Run(c)
			var v *Violation
			require.True(t, errors.As(err, &v), "%v", err)
			require.Equal(t, m.want, v.Promise, "%v", err)
		})
	}
	t.Run("stands still", func(t *testing.T) {
		c := Default()
		c.Apply = func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if _, ok := cmd.(replay.AcquireLeaseCmd); ok && cmd.Clock().Sub(epoch) > time.Minute {
				return replay.Result{Blocked: "for ever"}, nil
			}
			return replay.Apply(kv, cmd)
		}
		_, err := Run(c)
		require.ErrorContains(t, err, "stands still")
	})
	t.Run("is no function", func(t *testing.T) {
		c := Default()
		c.Replica = true
		folded := 0
		c.Apply = func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
			if folded++; folded%2 == 0 {
				if c, ok := cmd.(replay.TakeTicketsCmd); ok {
					c.Now = c.Now.Add(time.Nanosecond)
					cmd = c
				}
			}
			return replay.Apply(kv, cmd)
		}
		_, err := Run(c)
		require.ErrorContains(t, err, "two replicas")
	})
}

// TestConfigIsChecked names what is wrong.
func TestConfigIsChecked(t *testing.T) {
	require.NoError(t, Default().Validate())
	c := Default()
	c.Workers, c.Step, c.Limit = 0, Spread{}, -1
	_, err := Run(c)
	require.ErrorContains(t, err, "Workers is 0; give at least 1")
	require.ErrorContains(t, err, "Step is 0s")
	require.ErrorContains(t, err, "Limit is -1ns")
}
