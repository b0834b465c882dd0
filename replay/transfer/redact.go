package transfer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// Redacted stands where text was.
const Redacted = "[redacted]"

// Rule says which text of a log goes.
type Rule struct {
	// Match redacts what it matches in every text: of messages, arguments and
	// results, and of a failure's cause.
	Match *regexp.Regexp
	// Author redacts every text of the events of an author; a "*" at its end
	// stands for anything.
	Author string
}

// Redact returns the twin of an encoded log in which a rule's text is replaced,
// and its digest; changed is false, and the rest empty, when nothing was. The
// twin is a light log: token ids and logprobs spell out what was redacted, in
// prompts that no event points at as well, so it has none and trains no more. Id,
// events, order, rewards and the log's place among its siblings stay.
func (r Rule) Redact(data []byte) (twin []byte, digest string, changed bool, err error) {
	l, err := eventlog.Decode(data)
	if err != nil {
		return nil, "", false, err
	}
	for i := range l.Events {
		e := &l.Events[i]
		whole := r.Author != "" && byAuthor(e.Author, r.Author)
		for k, v := range e.Payload {
			now, did := r.value(v, whole)
			if did {
				e.Payload[k] = now
				changed = true
			}
		}
	}
	if cause, did := r.text(l.Meta.Cause, false); did {
		l.Meta.Cause, changed = cause, true
	}
	if !changed {
		return nil, "", false, nil
	}
	l.Tier, l.Branches = eventlog.Light, nil
	for i := range l.Events {
		l.Events[i].Span, l.Events[i].Branch = nil, 0
	}
	if twin, err = eventlog.Encode(l); err != nil {
		return nil, "", false, fmt.Errorf("redacted log: %w", err)
	}
	return twin, l.Digest(), true, nil
}

// value redacts the texts in a JSON value.
func (r Rule) value(v any, whole bool) (any, bool) {
	switch v := v.(type) {
	case string:
		return r.text(v, whole)
	case []any:
		out, changed := slices.Clone(v), false
		for i := range out {
			now, did := r.value(out[i], whole)
			out[i], changed = now, changed || did
		}
		return out, changed
	case map[string]any:
		out, changed := make(map[string]any, len(v)), false
		for k, x := range v {
			now, did := r.value(x, whole)
			out[k], changed = now, changed || did
		}
		return out, changed
	}
	return v, false
}

func (r Rule) text(s string, whole bool) (string, bool) {
	if s == "" || s == Redacted {
		return s, false
	}
	if whole {
		return Redacted, true
	}
	if r.Match == nil || !r.Match.MatchString(s) {
		return s, false
	}
	now := r.Match.ReplaceAllLiteralString(s, Redacted)
	return now, now != s
}

// ChangeStore is what changing stored logs needs of a store.
type ChangeStore interface {
	Store
	DeleteLogs(ctx context.Context, run string, logIDs []string, reason string) (int, error)
	Redact(ctx context.Context, run string, twins []replay.Twin, reason string) (int, error)
}

// ChangeReport counts what became of logs that were to be deleted or redacted.
type ChangeReport struct {
	Found   int `json:"found"`   // by the filter
	Changed int `json:"changed"` // deleted, or redacted
	Same    int `json:"same"`    // had nothing to redact
	// InUse were left alone, their groups being leased or rolled out; the ids of
	// the first are in Waiting.
	InUse   int      `json:"in_use"`
	Waiting []string `json:"waiting,omitempty"`
}

const maxWaiting = 20

// Add counts another report's logs too.
func (r *ChangeReport) Add(o ChangeReport) {
	r.Found, r.Changed, r.Same = r.Found+o.Found, r.Changed+o.Changed, r.Same+o.Same
	r.InUse += o.InUse
	r.Waiting = append(r.Waiting, o.Waiting...)
	r.Waiting = r.Waiting[:min(len(r.Waiting), maxWaiting)]
}

func (r *ChangeReport) inUse(id string) {
	r.InUse++
	if len(r.Waiting) < maxWaiting {
		r.Waiting = append(r.Waiting, id)
	}
}

// Delete deletes the logs of a run that pass the filter; with dry it counts them
// only.
func Delete(ctx context.Context, st ChangeStore, run string, f Filter, reason string, dry bool) (rep ChangeReport, err error) {
	err = Find(ctx, st, run, "", f, false, func(found []Found, _ string) error {
		rep.Found += len(found)
		if dry || len(found) == 0 {
			return nil
		}
		ids := make([]string, len(found))
		for i, x := range found {
			ids[i] = x.Record.Item.LogID
		}
		n, err := st.DeleteLogs(ctx, run, ids, reason)
		if rep.Changed += n; err == nil || !errors.Is(err, replay.ErrStale) {
			return err
		}
		for _, id := range ids { // all or none: one by one
			n, err := st.DeleteLogs(ctx, run, []string{id}, reason)
			rep.Changed += n
			if errors.Is(err, replay.ErrStale) {
				rep.inUse(id)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	return rep, err
}

// RedactAll redacts the logs of a run that pass the filter; with dry it counts
// them only.
func RedactAll(ctx context.Context, st ChangeStore, run string, f Filter, rule Rule, reason string, dry bool) (rep ChangeReport, err error) {
	if rule.Match == nil && rule.Author == "" {
		return rep, fmt.Errorf("%w: redact: no rule: say which text (a pattern) or whose (an author)", replay.ErrInvalid)
	}
	err = Find(ctx, st, run, "", f, true, func(found []Found, _ string) error {
		rep.Found += len(found)
		var twins []replay.Twin
		for _, x := range found {
			b, digest, changed, err := rule.Redact(x.Record.Bytes)
			if err != nil {
				return fmt.Errorf("log %q: %w", x.Record.Item.LogID, err)
			}
			if !changed {
				rep.Same++
				continue
			}
			twins = append(twins, replay.Twin{LogID: x.Record.Item.LogID, OldDigest: x.Record.Item.Digest, Digest: digest, Bytes: b})
		}
		if dry || len(twins) == 0 {
			return nil
		}
		n, err := st.Redact(ctx, run, twins, reason)
		if rep.Changed += n; err == nil || !errors.Is(err, replay.ErrStale) {
			return err
		}
		for _, t := range twins { // what was redacted before the refusal is a success again, uncounted
			n, err := st.Redact(ctx, run, []replay.Twin{t}, reason)
			rep.Changed += n
			if errors.Is(err, replay.ErrStale) {
				rep.inUse(t.LogID)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	return rep, err
}
