package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// ErrConfig: a configuration is not usable; the error lists everything wrong.
var ErrConfig = errors.New("table configuration")

// What a full table does.
const (
	Refuse = "refuse" // producers get a retryable error and wait
	Remove = "remove" // the remover chooses what goes, and it is counted
)

// What becomes of a group whose scored members all have the same reward.
const (
	Keep = "keep"
	Drop = "drop" // counted as "constant"
)

// By what two groups are the same.
const (
	DedupeTask    = "task"    // source and task of their first member
	DedupeContent = "content" // the digests of all members
)

// Where the priority of a group without one comes from.
const (
	PriorityConstant = "constant" // Config.Priority
	PriorityMax      = "max"      // the highest the table has seen, Config.Priority at first (PER)
	PriorityReward   = "reward"   // the mean reward of the scored members, Config.Priority without any
)

// When a group of train goes into a table that collects them.
const (
	CollectComplete = "complete" // when it is ready to be trained
	CollectFinished = "finished" // when it was trained, was too stale, or was dropped by a learner
)

// Config is one table. Its JSON form, snake case with every field, is what the
// registry keeps and what files hold; unknown fields are errors.
type Config struct {
	// Sampler chooses what is sampled, Remover what a full table removes.
	// Epochs has no meaning for a remover.
	Sampler Selector `json:"sampler"`
	Remover Selector `json:"remover"`
	Limiter Limiter  `json:"limiter"`

	// MaxTimesSampled is after how many commits a group leaves the table; 0 =
	// never.
	MaxTimesSampled uint32 `json:"max_times_sampled"`
	// MaxStaleness, in policy versions, is how far a group's oldest sampled
	// token may lie behind the learner; staler groups are dropped when they
	// are chosen, and counted. -1 = no bound.
	MaxStaleness int64 `json:"max_staleness"`

	// GroupSize is how many members a group has; 0 = what its logs say. A
	// group is inserted when it is complete.
	GroupSize uint32 `json:"group_size"`
	// GroupDeadline is how long, from its first log, a group may stay
	// incomplete; then it is inserted when it has MinMembers, else dropped and
	// counted as "incomplete". 0 = no deadline, and MinMembers must be 0.
	GroupDeadline Duration `json:"group_deadline"`
	MinMembers    uint32   `json:"min_members"`
	// ConstantGroups: Keep or Drop. A constant group has at least two scored
	// members, no unscored one beside failures, and one reward.
	ConstantGroups string `json:"constant_groups"`

	// DedupeBy: "", DedupeTask or DedupeContent. Of two groups that are the
	// same the first stays and the second is dropped, or with Replace the
	// other way round unless the first is leased. Counted as "duplicate".
	DedupeBy string `json:"dedupe_by"`
	Replace  bool   `json:"replace"`

	// TTL is how long a group stays, from its insertion; then it is removed
	// and counted as "expired", unless it is leased. 0 = for ever.
	TTL Duration `json:"ttl"`
	// MaxItems and MaxBytes bound the table, groups being collected and leased
	// ones included; 0 = 2^24 groups, no bound of bytes.
	MaxItems uint64 `json:"max_items"`
	MaxBytes uint64 `json:"max_bytes"`
	// OnFull: Refuse or Remove.
	OnFull string `json:"on_full"`

	// PriorityFrom: PriorityConstant, PriorityMax or PriorityReward.
	PriorityFrom string  `json:"priority_from"`
	Priority     float64 `json:"priority"`
	// Seed of the table's chance.
	Seed uint64 `json:"seed"`

	// Collect: "", CollectComplete or CollectFinished. The table gets the run's
	// groups of train by itself, under their names and beside what is inserted;
	// those it has no place for are counted as refused, and train goes on.
	Collect string `json:"collect,omitempty"` // left out when "": older configurations keep their bytes
}

// Default is an unbounded queue that gives every complete group out once,
// oldest first.
func Default() Config {
	return Config{
		Sampler: Selector{Kind: FIFO}, Remover: Selector{Kind: FIFO}, Limiter: Limiter{Kind: MinSize, MinSize: 1},
		MaxTimesSampled: 1, MaxStaleness: -1, ConstantGroups: Keep, OnFull: Refuse, PriorityFrom: PriorityConstant, Priority: 1,
	}
}

// Items is the bound of groups.
func (c Config) Items() uint64 {
	if c.MaxItems == 0 {
		return maxEntries
	}
	return c.MaxItems
}

// MaxGroupSize bounds a group.
const MaxGroupSize = 1024

// Validate reports every problem at once, wrapping ErrConfig.
func (c Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(field, v string, of ...string) {
		for _, o := range of {
			if v == o {
				return
			}
		}
		add("%s = %q: want one of %q", field, v, of)
	}
	errs = append(errs, c.Sampler.problems("sampler")...)
	errs = append(errs, c.Remover.problems("remover")...)
	if c.Remover.Epochs {
		add("remover.epochs = true: epochs are about sampling (set it to false)")
	}
	errs = append(errs, c.Limiter.problems()...)
	if k := c.Limiter.Kind; k == Queue || k == Stack {
		want := map[LimiterKind]Kind{Queue: FIFO, Stack: LIFO}[k]
		if c.Sampler.Kind != want || c.MaxTimesSampled != 1 {
			add("limiter.kind = %q with sampler.kind = %q and max_times_sampled = %d: want %q and 1", k, c.Sampler.Kind, c.MaxTimesSampled, want)
		}
	}
	if c.MaxStaleness < -1 {
		add("max_staleness = %d: want -1 (no bound), 0 (on-policy) or more", c.MaxStaleness)
	}
	if c.GroupSize > MaxGroupSize {
		add("group_size = %d: want at most %d", c.GroupSize, MaxGroupSize)
	}
	if c.GroupDeadline < 0 || c.TTL < 0 {
		add("group_deadline = %v, ttl = %v: want 0 (none) or more", c.GroupDeadline, c.TTL)
	}
	if c.MinMembers > 0 && c.GroupDeadline == 0 {
		add("min_members = %d without a group_deadline: it counts at the deadline only", c.MinMembers)
	}
	if c.GroupSize > 0 && c.MinMembers > c.GroupSize {
		add("min_members = %d above group_size = %d", c.MinMembers, c.GroupSize)
	}
	oneOf("constant_groups", c.ConstantGroups, Keep, Drop)
	oneOf("dedupe_by", c.DedupeBy, "", DedupeTask, DedupeContent)
	if c.Replace && c.DedupeBy == "" {
		add("replace = true without dedupe_by: say by what groups are the same")
	}
	if c.MaxItems > maxEntries {
		add("max_items = %d: want at most %d", c.MaxItems, maxEntries)
	}
	if c.Limiter.MinSize > c.Items() {
		add("limiter.min_size = %d above max_items = %d: nothing would ever be sampled", c.Limiter.MinSize, c.Items())
	}
	oneOf("on_full", c.OnFull, Refuse, Remove)
	oneOf("collect", c.Collect, "", CollectComplete, CollectFinished)
	oneOf("priority_from", c.PriorityFrom, PriorityConstant, PriorityMax, PriorityReward)
	if math.IsNaN(c.Priority) || math.IsInf(c.Priority, 0) { // JSON could not even say it
		add("priority = %v: want a finite number", c.Priority)
	} else if err := c.CheckPriority(c.Priority); err != nil {
		add("%w", err)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
}

// CheckPriority says why no group of the table can have the priority p.
func (c Config) CheckPriority(p float64) error {
	if err := c.Sampler.CheckPriority(p); err != nil {
		return err
	}
	return c.Remover.CheckPriority(p)
}

// Encode is the JSON form; equal configurations have equal bytes.
func (c Config) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return b, nil
}

// Decode reads the JSON form onto base: fields that are not there keep base's
// values, unknown ones are errors. It does not validate.
func Decode(b []byte, base Config) (Config, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&base); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("%w: something follows the configuration", ErrConfig)
	}
	return base, nil
}

// Duration is a time.Duration that JSON writes as Go does: "1m30s".
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(d.String())), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: want a string like \"1m30s\": %w", b, err)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: want one like \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}
