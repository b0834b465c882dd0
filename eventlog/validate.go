package eventlog

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Limits of one log. Encode and Decode refuse more, so that no length read from
// a file decides how much memory is taken.
const (
	MaxEncodedBytes = 64 << 20
	MaxEvents       = 1 << 20
	MaxBranches     = 1 << 16
	MaxTokens       = 1 << 24 // over all branches, shared prefixes counted in each
)

// ErrInvalid is wrapped by every problem Validate reports.
var ErrInvalid = errors.New("eventlog: invalid log")

// maxProblems bounds a report; what is beyond is counted.
const maxProblems = 1000

type problems struct {
	errs []error
	more int
}

// add notes that field has a value it must not have.
func (p *problems) add(field string, value any, remedy string, args ...any) {
	if len(p.errs) >= maxProblems {
		p.more++
		return
	}
	p.errs = append(p.errs, fmt.Errorf("%w: %s = %v: %s", ErrInvalid, field, value, fmt.Sprintf(remedy, args...)))
}

func (p *problems) text(field, s string) {
	if !utf8.ValidString(s) {
		p.add(field, fmt.Sprintf("%.40q", s), "not valid UTF-8; pass it through strings.ToValidUTF8")
	}
}

func (p *problems) time(field string, t time.Time) {
	if !t.IsZero() && (t.Year() < 1678 || t.Year() > 2261) {
		p.add(field, t, "outside the years 1678 to 2261; leave it zero when unknown")
	}
}

// Validate reports every broken invariant, joined; each wraps [ErrInvalid] and
// names field, value and remedy. A nil error means that Encode will accept the
// log unless it is larger than [MaxEncodedBytes].
func (l *Log) Validate() error {
	var p problems
	l.checkMeta(&p)
	if n := len(l.Events); n > MaxEvents {
		p.add("len(events)", n, "at most %d; split the rollout", MaxEvents)
	} else {
		l.checkEvents(&p)
	}
	l.checkBranches(&p)
	if p.more > 0 {
		p.errs = append(p.errs, fmt.Errorf("%w: %d more problems", ErrInvalid, p.more))
	}
	return errors.Join(p.errs...)
}

func (l *Log) checkMeta(p *problems) {
	m := &l.Meta
	if l.ID == "" {
		p.add("id", `""`, "a log needs an id; Builder.Finish derives one")
	}
	for _, f := range []struct{ name, value string }{
		{"id", l.ID}, {"meta.run", m.Run}, {"meta.group", m.Group}, {"meta.table", m.Table}, {"meta.source", m.Source},
		{"meta.task", m.Task}, {"meta.worker", m.Worker}, {"meta.cause", m.Cause},
	} {
		p.text(f.name, f.value)
	}
	p.time("meta.created", m.Created)
	if m.GroupSize > 0 && m.Member >= m.GroupSize || m.GroupSize == 0 && m.Member > 0 {
		p.add("meta.member", m.Member, "must be below meta.group_size = %d (both 0 outside a group)", m.GroupSize)
	}
	switch m.Status {
	case OK:
		if m.Cause != "" {
			p.add("meta.cause", fmt.Sprintf("%q", m.Cause), "status ok has no cause; set the status that fits or clear it")
		}
	case Truncated:
	case Failed, TimedOut:
		if m.Cause == "" {
			p.add("meta.cause", `""`, `status %v needs the boundary and reason, such as "tool: connection refused"`, m.Status)
		}
	default:
		p.add("meta.status", m.Status, "want ok, truncated, failed or timed_out")
	}
	switch l.Tier {
	case Full:
	case Light:
		if len(l.Branches) > 0 {
			p.add("tier", l.Tier, "a light log has no tokens but this one has %d branches; make it full", len(l.Branches))
		}
	default:
		p.add("tier", l.Tier, "want light or full")
	}
	if int64(l.Outcome) > int64(len(l.Events)) {
		p.add("outcome", l.Outcome, "there are %d events", len(l.Events))
	} else if l.Outcome > 0 && l.Events[l.Outcome-1].Partial {
		p.add("outcome", l.Outcome, "that event is partial; name the one that completes it or its parent")
	}
}
