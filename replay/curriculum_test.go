package replay

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newCurriculumSim has groups of 2, one a step, and a pool.
func newCurriculumSim(t *testing.T, c Curriculum) *sim {
	s := &sim{t: t, kv: NewMemKV(), now: epoch}
	require.NoError(t, s.do(CreateRunCmd{s.now, RunSpec{Run: "r", GroupSize: 2, GroupsPerStep: 1, MaxStaleness: 1, TicketTTL: time.Minute, MaxAttempts: 2, Curriculum: &c}}).Err)
	return s
}

// play rolls groups out, each task with a fixed success, and gives the tasks in
// order.
func (s *sim) play(groups int, success func(task uint64) float64) (tasks []uint64) {
	for range groups {
		tk := s.take(1)[0]
		require.NotNil(s.t, tk.Task)
		task := tk.TaskIndex()
		tasks = append(tasks, task)
		a, b := s.item(tk, 0), s.item(tk, 1)
		a.Reward, b.Reward = success(task), success(task)
		for _, r := range s.do(AppendItemsCmd{s.now, []Item{a, b}}).Append {
			require.Equal(s.t, AppendResult{Closed: r.Closed}, r)
		}
		require.NoError(s.t, s.commit(s.lease(1)))
	}
	return tasks
}

// Tasks of medium success come up most, though none is left out; with one
// candidate, or before anything is known, all are equally likely.
func TestCurriculumPrefersItsTarget(t *testing.T) {
	success := func(task uint64) float64 { return float64(task) / 39 }
	far := func(candidates, target uint32) float64 {
		s := newCurriculumSim(t, Curriculum{Tasks: 40, Target: target, Candidates: candidates, Seed: 3})
		tasks := s.play(400, success)[100:]
		sum := 0.0
		seen := map[uint64]bool{}
		for _, k := range tasks {
			require.Less(t, k, uint64(40))
			sum += math.Abs(success(k) - float64(target)/PerMillion)
			seen[k] = true
		}
		require.Greater(t, len(seen), 20)
		return sum / float64(len(tasks))
	}
	require.InDelta(t, .25, far(1, 500_000), .03)
	require.Less(t, far(4, 500_000), .15)
	require.InDelta(t, .5, far(1, PerMillion), .05)
	require.Less(t, far(4, PerMillion), .3)
}

// Without a curriculum tickets have no task but their place in the stream.
func TestNoCurriculumIsTheStream(t *testing.T) {
	s := newSim(t, 2, 4, 0)
	for i, tk := range s.take(4) {
		require.Nil(t, tk.Task)
		require.Equal(t, uint64(i), tk.TaskIndex())
	}
	n := 0
	require.NoError(t, s.kv.Iterate(taskPrefix("r"), nil, func(_, _ []byte) bool { n++; return true }))
	require.Zero(t, n)
}

// The same history gives the same tasks, whatever the clock says; a group keeps
// its task through another attempt.
func TestCurriculumGoesByTheFoldAlone(t *testing.T) {
	c := Curriculum{Tasks: 1000, Target: 500_000, Candidates: 8, Seed: 1}
	success := func(task uint64) float64 { return float64(task%7) / 6 }
	a, b := newCurriculumSim(t, c), newCurriculumSim(t, c)
	b.now = b.now.Add(1000 * time.Hour)
	first := a.play(60, success)
	require.Equal(t, first, b.play(60, success))
	c.Seed = 2
	require.NotEqual(t, first, newCurriculumSim(t, c).play(60, success))

	tk := a.take(1)[0]
	a.now = a.now.Add(2 * time.Minute) // its ticket ends
	again := a.take(1)[0]
	require.Equal(t, tk.Group, again.Group)
	require.Equal(t, uint32(2), again.Attempt)
	require.Equal(t, tk.TaskIndex(), again.TaskIndex())
}

// What broke measures nothing; rewards beyond [0, 1] count as its ends; a new
// measurement weighs as much as all before it.
func TestCurriculumMeasures(t *testing.T) {
	s := newCurriculumSim(t, Curriculum{Tasks: 1, Target: 500_000, Candidates: 1})
	finish := func(change func(a, b *Item)) {
		t.Helper()
		tk := s.take(1)[0]
		a, b := s.item(tk, 0), s.item(tk, 1)
		change(&a, &b)
		s.do(AppendItemsCmd{s.now, []Item{a, b}})
	}
	is := func(groups uint64, success uint32) {
		t.Helper()
		got, err := taskState(s.kv, "r", 0)
		require.NoError(t, err)
		require.Equal(t, [2]uint64{groups, uint64(success)}, [2]uint64{got.Groups, uint64(got.Success)})
	}
	fail := func(it *Item) { it.Status, it.Cause, it.HasReward, it.Reward = 3, "tool: broke", false, 0 }
	finish(func(a, b *Item) { fail(a); fail(b) })
	is(0, 0)
	finish(func(a, b *Item) { a.HasReward, b.HasReward = false, false })
	require.NoError(t, s.commit(s.lease(1)))
	is(0, 0)
	finish(func(a, b *Item) { fail(a); b.Reward = .5 })
	is(0, 0) // complete, but the learner has not done with it
	l := s.lease(1)
	require.NoError(t, s.do(ReleaseLeaseCmd{s.now, "r", l.ID, ""}).Err)
	is(0, 0)
	require.NoError(t, s.commit(s.lease(1)))
	is(1, 500_000)
	finish(func(a, b *Item) { a.Reward, b.Reward = 3, 1 })
	l = s.lease(1)
	require.NoError(t, s.do(ReleaseLeaseCmd{s.now, "r", l.ID, "nothing_to_train"}).Err)
	is(2, 750_000) // dropped by the learner: a group that teaches nothing says how hard its task is
}

// Which worker is faster changes nothing: the groups of a batch are picked alike
// whether others of it are complete already or not.
func TestCurriculumIgnoresTheOrderOfCompletion(t *testing.T) {
	pick := func(early bool) (tasks []uint64) {
		s := &sim{t: t, kv: NewMemKV(), now: epoch}
		c := Curriculum{Tasks: 6, Target: 500_000, Candidates: 6, Seed: 9}
		require.NoError(t, s.do(CreateRunCmd{s.now, RunSpec{Run: "r", GroupSize: 2, GroupsPerStep: 4, TicketTTL: time.Minute, MaxAttempts: 1, Curriculum: &c}}).Err)
		for range 10 {
			var waiting []Ticket
			for range 4 {
				tk := s.take(1)[0]
				tasks = append(tasks, tk.TaskIndex())
				if early {
					s.finish(tk)
				} else {
					waiting = append([]Ticket{tk}, waiting...)
				}
			}
			for _, tk := range waiting {
				s.finish(tk)
			}
			require.NoError(t, s.commit(s.lease(4)))
		}
		return tasks
	}
	require.Equal(t, pick(true), pick(false))
}

func TestCurriculumPhases(t *testing.T) {
	c := Curriculum{Tasks: 100, Phases: []CurriculumPhase{{20, 300_000}, {70, PerMillion}}}
	for step, want := range map[uint64]uint64{0: 30, 20: 30, 45: 65, 69: 99, 70: 100, 1000: 100} {
		require.Equal(t, want, c.Open(step), "step %d", step)
	}
	c.Phases = []CurriculumPhase{{0, 1}}
	require.Equal(t, uint64(1), c.Open(5), "at least one")
	require.Equal(t, uint64(100), (&Curriculum{Tasks: 100}).Open(0))
	s := newCurriculumSim(t, Curriculum{Tasks: 100, Target: 500_000, Candidates: 2, Phases: []CurriculumPhase{{10, 50_000}, {20, PerMillion}}})
	tasks := s.play(60, func(uint64) float64 { return .5 })
	for _, k := range tasks[:10] {
		require.Less(t, k, uint64(5))
	}
	late := 0
	for _, k := range tasks[20:] {
		if k >= 50 {
			late++
		}
	}
	require.Greater(t, late, 8)
}

func TestCurriculumAndBlobsOfSpec(t *testing.T) {
	bad := Curriculum{Target: 2_000_000, Phases: []CurriculumPhase{{5, 0}, {5, 1}}}
	err := RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, TicketTTL: 1, MaxAttempts: 1, Curriculum: &bad, Blobs: []string{""}}.Validate()
	for _, want := range []string{"Tasks = 0", "Candidates = 0", "Target = 2000000", "Phases[0].Share = 0", "Phases[1].Step = 5", "Blobs[0] is empty"} {
		require.ErrorContains(t, err, want)
	}
	s := newCurriculumSim(t, Curriculum{Tasks: 2, Candidates: 1})
	spec := s.status().Spec
	require.Equal(t, uint64(2), spec.Curriculum.Tasks)
	require.NoError(t, s.do(CreateRunCmd{s.now, spec}).Err, "the same again")
	spec.Curriculum = &Curriculum{Tasks: 3, Candidates: 1}
	require.ErrorContains(t, s.do(CreateRunCmd{s.now, spec}).Err, "Curriculum differs")
	spec.Curriculum = nil
	require.ErrorContains(t, s.do(CreateRunCmd{s.now, spec}).Err, "Curriculum differs")
	spec = s.status().Spec
	spec.Run, spec.Blobs = "k", []string{"blake3:model"}
	require.NoError(t, s.do(CreateRunCmd{s.now, spec}).Err)
	live, _, err := Blobs(s.kv)
	require.NoError(t, err)
	require.True(t, live["blake3:model"])
}
