package replay

import (
	"fmt"
	"math"
	"slices"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Bounds of a curriculum.
const (
	maxPool       = 1 << 24
	maxCandidates = 256
	maxPhases     = 64
	// PerMillion is the whole of shares and successes in a Curriculum: whole
	// numbers, so that every machine picks the same task.
	PerMillion = 1_000_000
)

// Curriculum picks the tasks of a run's groups by what was measured, instead of
// in the order of the stream. For each new group Candidates tasks are drawn from
// the pool, each as likely as the others, by (Seed, index of the group); the one
// whose success is nearest to Target is rolled out. A task's success is the mean
// reward of its groups, within [0, 1], each new one counting as much as all
// before it: the policy moves on. A task not tried yet counts as far from Target
// as tasks of every success are on average. Equally near ones: the one tried
// less, then the one drawn first.
//
// All it goes by is in the fold: groups are measured when the learner has done
// with them, in the order of its leases, so that which task comes next depends on
// committed (and dropped) batches alone, never on a clock or on which worker was
// faster.
type Curriculum struct {
	// Tasks is the pool: tasks 0 to Tasks-1 of the source, the easiest first where
	// Phases are to mean anything.
	Tasks uint64
	// Target is the success sought, per million.
	Target uint32
	// Candidates drawn for each group; 1 takes what is drawn.
	Candidates uint32
	Seed       uint64
	// Phases open the pool by committed steps: between two of them the share of the
	// pool grows evenly, before the first and after the last it stays. None = all
	// of it from the start.
	Phases []CurriculumPhase
}

// CurriculumPhase: at so many committed steps the first Share, per million, of
// the pool is open, at least one task.
type CurriculumPhase struct {
	Step  uint64
	Share uint32
}

func (c *Curriculum) validate(add func(format string, args ...any)) {
	if c == nil {
		return
	}
	if c.Tasks < 1 || c.Tasks > maxPool {
		add("Curriculum.Tasks = %d: want 1 to %d", c.Tasks, maxPool)
	}
	if c.Candidates < 1 || c.Candidates > maxCandidates {
		add("Curriculum.Candidates = %d: want 1 to %d", c.Candidates, maxCandidates)
	}
	if c.Target > PerMillion {
		add("Curriculum.Target = %d: want at most %d (per million)", c.Target, PerMillion)
	}
	if len(c.Phases) > maxPhases {
		add("Curriculum.Phases: %d of them: want at most %d", len(c.Phases), maxPhases)
	}
	for i, p := range c.Phases {
		if p.Share < 1 || p.Share > PerMillion {
			add("Curriculum.Phases[%d].Share = %d: want 1 to %d (per million)", i, p.Share, PerMillion)
		}
		if p.Step > math.MaxUint32 || i > 0 && p.Step <= c.Phases[i-1].Step {
			add("Curriculum.Phases[%d].Step = %d: want steps that rise", i, p.Step)
		}
	}
}

func (c *Curriculum) equal(o *Curriculum) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Tasks == o.Tasks && c.Target == o.Target && c.Candidates == o.Candidates && c.Seed == o.Seed && slices.Equal(c.Phases, o.Phases)
}

// Open is how many tasks of the pool are open after so many steps.
func (c *Curriculum) Open(step uint64) uint64 {
	share := uint64(PerMillion)
	for i, p := range c.Phases {
		if step < p.Step {
			share = uint64(p.Share)
			if i > 0 { // on the way from the phase before
				before := c.Phases[i-1]
				share = uint64(int64(before.Share) + (int64(p.Share)-int64(before.Share))*int64(step-before.Step)/int64(p.Step-before.Step))
			}
			break
		}
		share = uint64(p.Share)
	}
	return max(1, (c.Tasks*share+PerMillion-1)/PerMillion)
}

// unknown is how far a task not tried yet counts from the target: the mean of
// |x - t| for x even in [0, 1].
func (c *Curriculum) unknown() uint64 {
	t := uint64(c.Target)
	return (t*t + (PerMillion-t)*(PerMillion-t)) / (2 * PerMillion)
}

// pickTask picks the task of a new group.
func (f *fold) pickTask(r *runState, c *Curriculum, index uint64) (uint64, error) {
	open := c.Open(r.LastStep)
	var best, bestSeen, bestFar uint64
	for j := range uint64(c.Candidates) {
		task := mixed(mixed(c.Seed^mixed(index))+j) % open
		s, err := taskState(f.kv, r.run, task)
		if err != nil {
			return 0, err
		}
		far := c.unknown()
		if s.Groups > 0 {
			far = uint64(max(int64(s.Success)-int64(c.Target), int64(c.Target)-int64(s.Success)))
		}
		if j == 0 || far < bestFar || far == bestFar && s.Groups < bestSeen {
			best, bestSeen, bestFar = task, s.Groups, far
		}
	}
	return best, nil
}

// learnTask measures the task of a group that was trained, or dropped by the
// learner.
func (f *fold) learnTask(r *runState, g *pb.GroupState) error {
	if g.Task == nil {
		return nil
	}
	sum, scored := 0.0, 0
	for _, m := range g.Members {
		it := new(pb.ItemState)
		ok, err := load(f.kv, itemKey(m.LogId), it)
		if err != nil {
			return err
		}
		if ok && !m.Failed && it.Item.GetHasReward() {
			sum += min(max(it.Item.GetReward(), 0), 1)
			scored++
		}
	}
	if scored == 0 {
		return nil // nothing was measured
	}
	s, err := taskState(f.kv, r.run, *g.Task)
	if err != nil {
		return err
	}
	now := uint32(math.Round(sum / float64(scored) * PerMillion))
	if s.Groups > 0 {
		now = (s.Success + now) / 2
	}
	s.Groups, s.Success = s.Groups+1, now
	return f.put(taskKey(r.run, *g.Task), s)
}

func taskState(kv Reader, run string, task uint64) (*pb.TaskState, error) {
	s := new(pb.TaskState)
	_, err := load(kv, taskKey(run, task), s)
	return s, err
}

// TaskIndex is the task of a ticket's source to roll out: what the run's
// curriculum picked, else the ticket's place in the stream.
func (t Ticket) TaskIndex() uint64 {
	if t.Task != nil {
		return *t.Task
	}
	return t.Index
}

func curriculumToPB(c *Curriculum) *pb.Curriculum {
	if c == nil {
		return nil
	}
	m := &pb.Curriculum{Tasks: c.Tasks, Target: c.Target, Candidates: c.Candidates, Seed: c.Seed}
	for _, p := range c.Phases {
		m.Phases = append(m.Phases, &pb.CurriculumPhase{Step: p.Step, Share: p.Share})
	}
	return m
}

func curriculumFromPB(m *pb.Curriculum) *Curriculum {
	if m == nil {
		return nil
	}
	c := &Curriculum{Tasks: m.Tasks, Target: m.Target, Candidates: m.Candidates, Seed: m.Seed}
	for _, p := range m.Phases {
		c.Phases = append(c.Phases, CurriculumPhase{p.Step, p.Share})
	}
	return c
}

func checkBlobs(blobs []string) error {
	for i, d := range blobs {
		if err := checkID(fmt.Sprintf("Blobs[%d]", i), d); err != nil {
			return err
		}
	}
	if len(blobs) > maxPhases {
		return fmt.Errorf("Blobs: %d of them: want at most %d", len(blobs), maxPhases)
	}
	return nil
}
