package replay

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Bounds of ids and counts, far above any use: they keep every value of the
// state under 1 MiB, which is what one write of Badger takes.
const (
	maxID        = 512
	maxRun       = 128 // group ids are built on it
	maxGroupSize = 1024
	maxGroups    = 4096 // of one step, and of one lease
	maxAttempts  = 1 << 16
	maxStaleness = 4096
	maxConfig    = 512 << 10 // bytes
	maxStepBytes = 768 << 10 // of an encoded StepRecord
	maxEvalCount = 1 << 20
)

// Validate reports every problem of a spec at once, wrapping ErrInvalid.
func (s RunSpec) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkID("Run", s.Run); err != nil {
		errs = append(errs, err)
	}
	if len(s.Run) > maxRun {
		add("Run of %d bytes: want at most %d", len(s.Run), maxRun)
	}
	if s.GroupSize < 1 || s.GroupSize > maxGroupSize {
		add("GroupSize = %d: want 1 to %d rollouts", s.GroupSize, maxGroupSize)
	}
	if s.GroupsPerStep < 1 || s.GroupsPerStep > maxGroups {
		add("GroupsPerStep = %d: want 1 to %d groups", s.GroupsPerStep, maxGroups)
	}
	if s.MaxStaleness > maxStaleness {
		add("MaxStaleness = %d: want at most %d versions", s.MaxStaleness, maxStaleness)
	}
	if s.TicketTTL <= 0 {
		add("TicketTTL = %v: want the time one group may take, above 0", s.TicketTTL)
	}
	if s.MaxAttempts < 1 || s.MaxAttempts > maxAttempts {
		add("MaxAttempts = %d: want 1 to %d", s.MaxAttempts, maxAttempts)
	}
	if len(s.Config) > maxConfig {
		add("Config of %d bytes: want at most %d", len(s.Config), maxConfig)
	}
	if !utf8.ValidString(s.BaseDigest) || len(s.BaseDigest) > maxID {
		add("BaseDigest %q: want UTF-8 of at most %d bytes", cut(s.BaseDigest, 40), maxID)
	}
	if err := CheckTenant(s.Tenant); err != nil {
		errs = append(errs, err)
	}
	if !utf8.ValidString(s.StartAdapter) || len(s.StartAdapter) > maxID {
		add("StartAdapter %q: want UTF-8 of at most %d bytes", cut(s.StartAdapter, 40), maxID)
	}
	if err := checkBlobs(s.Blobs); err != nil {
		errs = append(errs, err)
	}
	s.Curriculum.validate(add)
	s.Stragglers.validate(s, add)
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: run spec %q: %w", ErrInvalid, cut(s.Run, maxID), errors.Join(errs...))
}

// checkID says what is wrong with an id.
func checkID(field, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%s is empty", field)
	case len(id) > maxID:
		return fmt.Errorf("%s of %d bytes: want at most %d", field, len(id), maxID)
	case !utf8.ValidString(id):
		return fmt.Errorf("%s %q is not UTF-8", field, id)
	}
	return nil
}

// capacity is how many train groups may be dispatched and not yet consumed.
// Consumed in order, the last of them is trained MaxStaleness versions after
// its dispatch at most. The version itself does not enter, so a recovered run
// gets no flood.
func capacity(s *pb.RunSpec) uint64 {
	return RunSpec{MaxStaleness: s.MaxStaleness, GroupsPerStep: s.GroupsPerStep}.Capacity()
}

func (f *fold) createRun(spec RunSpec) error {
	if err := spec.Validate(); err != nil {
		return &refusal{err}
	}
	old := new(pb.RunState)
	ok, err := load(f.kv, runKey(spec.Run), old)
	if err != nil {
		return err
	}
	if ok {
		have, err := readSpec(f.kv, old)
		if err != nil {
			return err
		}
		if have.Tenant != spec.Tenant {
			return refuse(ErrInvalid, "run %q exists and is another tenant's (choose another name)", spec.Run)
		}
		if diff := specDiff(have, spec); diff != "" {
			return refuse(ErrInvalid, "run %q exists with another spec: %s (resume with the recorded config, or choose another name)", spec.Run, diff)
		}
		return nil
	}
	rules := specToPB(spec)
	rules.Config = nil // kept apart: the run state is rewritten by every command
	return firstError(
		f.foundTenant(spec.Tenant),
		f.put(runKey(spec.Run), &pb.RunState{Spec: rules}),
		f.kv.Set(configKey(spec.Run), spec.Config),
		f.put(policyKey(spec.Run, 0), &pb.Policy{Run: spec.Run, Adapter: spec.StartAdapter}),
	)
}

// specDiff names the first field that differs, with both values.
func specDiff(have, want RunSpec) string {
	diff := func(field string, a, b any) string { return fmt.Sprintf("%s is %v there, %v here", field, a, b) }
	switch {
	case have.GroupSize != want.GroupSize:
		return diff("GroupSize", have.GroupSize, want.GroupSize)
	case have.GroupsPerStep != want.GroupsPerStep:
		return diff("GroupsPerStep", have.GroupsPerStep, want.GroupsPerStep)
	case have.MaxStaleness != want.MaxStaleness:
		return diff("MaxStaleness", have.MaxStaleness, want.MaxStaleness)
	case have.TicketTTL != want.TicketTTL:
		return diff("TicketTTL", have.TicketTTL, want.TicketTTL)
	case have.MaxAttempts != want.MaxAttempts:
		return diff("MaxAttempts", have.MaxAttempts, want.MaxAttempts)
	case have.BaseDigest != want.BaseDigest:
		return diff("BaseDigest", have.BaseDigest, want.BaseDigest)
	case have.StartAdapter != want.StartAdapter:
		return diff("StartAdapter", have.StartAdapter, want.StartAdapter)
	case have.KeepCheckpoints != want.KeepCheckpoints:
		return diff("KeepCheckpoints", have.KeepCheckpoints, want.KeepCheckpoints)
	case !slices.Equal(have.Blobs, want.Blobs):
		return diff("Blobs", have.Blobs, want.Blobs)
	case have.Stragglers != want.Stragglers:
		return diff("Stragglers", have.Stragglers, want.Stragglers)
	case !have.Curriculum.equal(want.Curriculum):
		return "Curriculum differs"
	case !bytes.Equal(have.Config, want.Config):
		return fmt.Sprintf("Config (%d bytes there, %d here) differs", len(have.Config), len(want.Config))
	}
	return ""
}

func (f *fold) finishRun(run string) error {
	r, err := f.run(run)
	if err != nil {
		return err
	}
	r.Finished = true
	return nil
}
