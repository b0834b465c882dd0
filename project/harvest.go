package project

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// Forms of pairs that rollouts become.
const (
	formTrajectories = "trajectories" // whole rollouts of a group, the better against the worse
	formSteps        = "steps"        // single turns where a log kept a rejected branch
)

// RolloutsConfig takes rows from the EventLogs of another run instead of from
// files: the best of each group for sft, pairs for dpo and reward, verdicts for
// kto and bco. Tokens are those of the logs.
type RolloutsConfig struct {
	// Dir is the folder of the run, running or not; "" = none.
	Dir string `yaml:"dir,omitempty"`
	// Run names it where the folder holds several; Table is train, eval or
	// demonstrations.
	Run   string `yaml:"run,omitempty"`
	Table string `yaml:"table"`
	// Form of pairs: trajectories or steps.
	Form string `yaml:"form"`

	learner.HarvestConfig `yaml:",inline"`
}

func defaultRollouts() RolloutsConfig {
	return RolloutsConfig{Table: "train", Form: formTrajectories, HarvestConfig: learner.DefaultHarvestConfig()}
}

func (r RolloutsConfig) validate(bad func(field string, value any, remedy string)) []error {
	if r.Dir == "" {
		return nil
	}
	if r.Form != formTrajectories && r.Form != formSteps {
		bad("data.rollouts.form", fmt.Sprintf("%q", r.Form), fmt.Sprintf("use %q or %q", formTrajectories, formSteps))
	}
	if err := r.HarvestConfig.Validate(); err != nil {
		return within("data.rollouts", err)
	}
	return nil
}

// harvest reads the groups of a run's table and forms the algorithm's rows.
func harvest(ctx context.Context, c Config, m *model.Model, log *slog.Logger) (*data.Set, data.Report, error) {
	r := c.Data.Rollouts
	rep := data.Report{Formats: map[string]int{"rollouts": 1}}
	st, err := OpenStore(ctx, StoreOptions{Dir: r.Dir, Log: log})
	if err != nil {
		return nil, rep, err
	}
	defer st.Close()
	run, err := soleRunOf(ctx, st, r.Run)
	if err != nil {
		return nil, rep, fmt.Errorf("project: data.rollouts: %w", err)
	}
	status, err := st.Status(ctx, run)
	if err != nil {
		return nil, rep, err
	}
	if d := status.Spec.BaseDigest; d != m.Digest {
		return nil, rep, fmt.Errorf("project: data.rollouts: run %s is of base %s, model %s has digest %s: its tokens mean nothing to another model", run, d, c.Model, m.Digest)
	}
	groups, n, err := groupsOf(ctx, st, run, r.Table)
	if err != nil {
		return nil, rep, err
	}
	rep.Read = n
	h, err := form(c, groups)
	if err != nil {
		return nil, rep, err
	}
	rows := h.Rows
	if limit := c.dataOptions(m.Config.ContextLimit()).MaxLength; limit > 0 {
		rows = slices.DeleteFunc(rows, func(e data.Example) bool { return e.Longest() > limit })
		rep.TooLong = len(h.Rows) - len(rows)
	}
	for why, k := range h.Excluded {
		if !strings.HasPrefix(why, "group_") {
			rep.Bad += k
		}
		log.Info("left out of the harvest", "why", why, "count", k)
	}
	if len(rows) == 0 {
		return nil, rep, fmt.Errorf("%w: %d rollouts in table %q of run %s gave none (%v, %d too long)", data.ErrEmpty, n, r.Table, run, h.Excluded, rep.TooLong)
	}
	return data.NewSet(fmt.Sprintf("rollouts of %s/%s", run, r.Table), rows, c.Data.Order), rep, nil
}

func form(c Config, groups []learner.Group) (learner.Harvest, error) {
	h := c.Data.Rollouts.HarvestConfig
	switch wants(c.Training.Algorithm) {
	case data.WantPairs:
		if c.Data.Rollouts.Form == formSteps {
			return learner.StepPairs(groups)
		}
		return learner.Pairs(h, groups)
	case data.WantVerdicts:
		return learner.Verdicts(h, groups)
	}
	return learner.Demonstrations(h, groups)
}

// soleRunOf is the named run, or the only one beside evaluations of base models.
func soleRunOf(ctx context.Context, st *Store, name string) (string, error) {
	runs, err := st.Runs(ctx)
	if err != nil {
		return "", err
	}
	if name != "" {
		if !slices.Contains(runs, name) {
			return "", fmt.Errorf("run: there is no %q; there are: %s", name, strings.Join(runs, ", "))
		}
		return name, nil
	}
	own := slices.DeleteFunc(slices.Clone(runs), func(r string) bool { return strings.HasSuffix(r, baseSuffix) })
	if len(own) != 1 {
		return "", fmt.Errorf("run: there are %d runs (%s): name one", len(own), strings.Join(own, ", "))
	}
	return own[0], nil
}

// groupsOf reads every log of a table in its group, groups and members in an
// order of their own, so that no order of arrival changes the rows.
func groupsOf(ctx context.Context, st *Store, run, table string) (groups []learner.Group, n int, err error) {
	byID := map[string]int{}
	for cursor := ""; ; {
		items, next, err := st.Scan(ctx, run, table, cursor, 200)
		if err != nil {
			return nil, n, err
		}
		ids := make([]string, len(items))
		for i, it := range items {
			ids[i] = it.LogID
		}
		var recs []replay.Record
		if len(ids) > 0 {
			if recs, err = st.Fetch(ctx, ids); err != nil {
				return nil, n, err
			}
		}
		for _, r := range recs {
			l, err := eventlog.Decode(r.Bytes)
			if err != nil {
				return nil, n, fmt.Errorf("project: log %s: %w", r.Item.LogID, err)
			}
			at, ok := byID[r.Item.Group]
			if !ok {
				at = len(groups)
				byID[r.Item.Group] = at
				groups = append(groups, learner.Group{ID: r.Item.Group, Closed: true})
			}
			groups[at].Logs = append(groups[at].Logs, l)
			n++
		}
		if next == "" {
			return groups, n, nil
		}
		cursor = next
	}
}
