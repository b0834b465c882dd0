package eventlog

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// ErrFinished is returned by a Builder after Finish succeeded.
var ErrFinished = errors.New("eventlog: builder is finished")

// Builder writes one log. A method that fails changes nothing. Not safe for
// concurrent use.
//
// Tokens come first, the event that points at them after:
//
//	b := eventlog.NewBuilder(meta)
//	prompt, err := b.AppendTokens(0, promptIDs, nil, eventlog.Prompt, 0)
//	b.Append(eventlog.NewObservation("env", text).In(0, prompt))
//	out, err := b.AppendTokens(0, gen.IDs, gen.Logprobs, eventlog.Policy, version)
//	b.Append(eventlog.NewText(answer).In(0, out))
//	b.Append(eventlog.NewReward(eventlog.EpisodeScope, 1))
//	log, err := b.Finish(eventlog.OK, "")
type Builder struct {
	log  Log
	head uint32
	done bool
}

// NewBuilder starts a log. Meta's Status and Cause are set by Finish.
func NewBuilder(meta Meta) *Builder { return &Builder{log: Log{Meta: meta}} }

// SetID names the log. Without it, Finish derives an id from the content, so
// that a log sent twice has one id.
func (b *Builder) SetID(id string) { b.log.ID = id }

// SetTier says whether a log without tokens may train. A token branch makes a
// log full by itself.
func (b *Builder) SetTier(t Tier) { b.log.Tier = t }

// Head returns the Seq that the next Append follows; 0 before the first.
func (b *Builder) Head() uint32 { return b.head }

// Append adds an event after the one appended last, or after e.Parent when that
// is not 0, and returns its Seq. A partial event does not become the head: the
// event that completes it is appended to the same parent.
//
// Filled in when empty: Seq; Author by kind (agent for text, reasoning, calls
// and memory, tool:<name> for results, env otherwise); CallID of a call
// ("call_<seq>") and of a result, where exactly one call above it is
// unanswered. The payload is copied. Errors wrap [ErrInvalid] and name what is
// wrong with the event.
func (b *Builder) Append(e Event) (uint32, error) {
	if e.Parent == 0 {
		e.Parent = b.head
	}
	return b.AppendAfter(e.Parent, e)
}

// AppendAfter is Append after the event parent; 0 makes a new root. It is how
// an alternative starts: at the event where the histories part.
func (b *Builder) AppendAfter(parent uint32, e Event) (uint32, error) {
	if b.done {
		return 0, ErrFinished
	}
	if len(b.log.Events) >= MaxEvents {
		return 0, fmt.Errorf("append event: %w: at most %d events", ErrTooLarge, MaxEvents)
	}
	e.Seq = uint32(len(b.log.Events) + 1)
	e.Parent = parent
	var p problems
	at := fmt.Sprintf("events[%d]", len(b.log.Events))
	if int64(parent) > int64(len(b.log.Events)) {
		p.add(at+".parent", parent, "there are %d events", len(b.log.Events))
	} else if parent > 0 && b.log.Events[parent-1].Partial {
		p.add(at+".parent", parent, "that event is partial; follow its parent")
	} else if err := b.fill(&e); err != nil {
		p.add(at+".call_id", `""`, "%v", err)
	}
	payload, err := normalise(e.Payload)
	if err != nil {
		p.add(at+".payload", "invalid", "%v", err)
	} else {
		e.Payload = payload
		b.log.checkEvent(&p, at, &e)
	}
	if err := errors.Join(p.errs...); err != nil {
		return 0, fmt.Errorf("append %v event: %w", e.Kind, err)
	}
	if e.Span != nil {
		span := *e.Span
		e.Span = &span
	} else {
		e.Branch = 0
	}
	b.log.Events = append(b.log.Events, e)
	if !e.Partial {
		b.head = e.Seq
	}
	return e.Seq, nil
}

// fill gives an event the author and call id its kind implies.
func (b *Builder) fill(e *Event) error {
	switch e.Kind {
	case ToolCall:
		if e.CallID == "" && slices.ContainsFunc(e.Calls(), func(c Call) bool { return c.ID == "" || c.ID[0] == '/' }) {
			e.CallID = "call_" + strconv.Itoa(int(e.Seq))
		}
	case ToolResult:
		open := b.openCalls(e.Parent, e.CallID)
		if len(open) != 1 {
			if e.CallID != "" {
				return fmt.Errorf("no tool call above has the id %q", e.CallID)
			}
			return fmt.Errorf("%d calls above are unanswered; say which one this result is for", len(open))
		}
		e.CallID = open[0].ID
		if e.Author == "" {
			e.Author = "tool:unknown"
			if open[0].Name != "" {
				e.Author = "tool:" + open[0].Name
			}
		}
	}
	if e.Author == "" {
		switch e.Kind {
		case Text, Reasoning, ToolCall, MemoryOp:
			e.Author = "agent"
		default:
			e.Author = "env"
		}
	}
	return nil
}

// openCalls returns the nearest call with an id at or above seq, or, for id "",
// every call there without a result.
func (b *Builder) openCalls(seq uint32, id string) []Call {
	var open []Call
	answered := map[string]int{} // results met on the way up
	for ; seq > 0; seq = b.log.up(seq) {
		e := &b.log.Events[seq-1]
		if e.Kind == ToolResult {
			answered[e.CallID]++
		}
		for _, c := range e.Calls() {
			if id != "" && c.ID == id {
				return []Call{c}
			}
			if answered[c.ID] > 0 {
				answered[c.ID]--
			} else if id == "" {
				open = append(open, c)
			}
		}
	}
	return open
}

// Root starts a token branch that shares nothing and returns its index. Branch
// 0 needs no call: the first AppendTokens makes it.
func (b *Builder) Root() (uint32, error) {
	n := uint32(len(b.log.Branches))
	return n, b.addBranch(Branch{Parent: n})
}

// Fork starts a token branch with the first at tokens of parent, logprobs and
// writers included, and returns its index.
func (b *Builder) Fork(parent uint32, at int32) (uint32, error) {
	n := uint32(len(b.log.Branches))
	if parent >= n {
		return 0, fmt.Errorf("fork: %w: parent = %d: there are %d branches", ErrInvalid, parent, n)
	}
	p := &b.log.Branches[parent]
	if at < 0 || int(at) > len(p.IDs) {
		return 0, fmt.Errorf("fork: %w: at = %d: want 0 to %d, the tokens of branch %d", ErrInvalid, at, len(p.IDs), parent)
	}
	if b.tokens()+int(at) > MaxTokens {
		return 0, fmt.Errorf("fork: %w: at most %d tokens over all branches", ErrTooLarge, MaxTokens)
	}
	br := Branch{Parent: parent, Fork: at, IDs: slices.Clone(p.IDs[:at]), Logprobs: slices.Clone(p.Logprobs[:at])}
	if at > 0 {
		br.copyRuns(p, at)
	}
	return n, b.addBranch(br)
}

func (b *Builder) addBranch(br Branch) error {
	if b.done {
		return ErrFinished
	}
	if len(b.log.Branches) >= MaxBranches {
		return fmt.Errorf("new branch: %w: at most %d branches", ErrTooLarge, MaxBranches)
	}
	b.log.Branches = append(b.log.Branches, br)
	b.log.Tier = Full
	return nil
}

func (b *Builder) tokens() int {
	n := 0
	for i := range b.log.Branches {
		n += len(b.log.Branches[i].IDs)
	}
	return n
}

// AppendTokens adds tokens to a branch's columns and returns where they lie.
// Policy tokens need one finite logprob <= 0 each and the version that sampled
// them: call it once per version run of a generation. Expert tokens may have
// logprobs; Prompt and Environment tokens have none (pass nil; NaN is stored).
// A length that does not match is an error here, not in the learner.
func (b *Builder) AppendTokens(branch uint32, ids []int32, logprobs []float32, writer Writer, version uint64) (Span, error) {
	fail := func(field string, value any, remedy string, args ...any) (Span, error) {
		return Span{}, fmt.Errorf("append tokens to branch %d: %w: %s = %v: %s", branch, ErrInvalid, field, value, fmt.Sprintf(remedy, args...))
	}
	if b.done {
		return Span{}, ErrFinished
	}
	first := branch == 0 && len(b.log.Branches) == 0
	if !first && int64(branch) >= int64(len(b.log.Branches)) {
		return fail("branch", branch, "there are %d; make it with Fork or Root", len(b.log.Branches))
	}
	if writer == WriterUnknown || writer > Expert {
		return fail("writer", writer, "want prompt, policy, environment or expert")
	}
	if writer != Policy && version != 0 {
		return fail("version", version, "only policy tokens have one; want 0 for %v", writer)
	}
	if len(logprobs) != len(ids) && (writer == Policy || logprobs != nil) {
		return fail("len(logprobs)", len(logprobs), "want one per token: %d (never re-encode sampled text)", len(ids))
	}
	if b.tokens()+len(ids) > MaxTokens {
		return Span{}, fmt.Errorf("append tokens to branch %d: %w: at most %d tokens over all branches", branch, ErrTooLarge, MaxTokens)
	}
	for i, id := range ids {
		if id < 0 && (id != UnknownID || writer != Expert) {
			return fail(fmt.Sprintf("ids[%d]", i), id, "a token id is not negative")
		}
		if logprobs != nil && !validLogprob(writer, logprobs[i]) {
			return fail(fmt.Sprintf("logprobs[%d]", i), logprobs[i], "%s", logprobRule(writer))
		}
	}
	if first {
		if err := b.addBranch(Branch{}); err != nil {
			return Span{}, err
		}
	}
	br := &b.log.Branches[branch]
	span := Span{Start: int32(len(br.IDs)), End: int32(len(br.IDs) + len(ids))}
	if len(ids) == 0 {
		return span, nil
	}
	br.IDs = append(br.IDs, ids...)
	for i := range ids {
		lp := float32(math.NaN())
		if logprobs != nil && logprobs[i] == logprobs[i] {
			lp = logprobs[i]
		}
		br.Logprobs = append(br.Logprobs, lp)
	}
	br.addRun(Run{End: span.End, Writer: writer, Version: version})
	return span, nil
}

// Tokens returns the ids of a branch so far: the next prompt of a token-in,
// token-out engine. Read-only, and stale after the next AppendTokens.
func (b *Builder) Tokens(branch uint32) []int32 {
	if int64(branch) >= int64(len(b.log.Branches)) {
		return nil
	}
	return b.log.Branches[branch].IDs
}

// SetOutcome names the event that ends the accepted history. Without it, that
// is the event appended last.
func (b *Builder) SetOutcome(seq uint32) error {
	if seq == 0 || int64(seq) > int64(len(b.log.Events)) || b.log.Events[seq-1].Partial {
		return fmt.Errorf("set outcome: %w: seq = %d: want a complete event, 1 to %d", ErrInvalid, seq, len(b.log.Events))
	}
	b.log.Outcome = seq
	return nil
}

// Finish closes the log. It marks as accepted the branches in which the
// accepted history has its tokens (the last branch where events point at none),
// derives a missing id from the content, and validates the whole. After an
// error the builder can be corrected and finished again; after success it is
// spent and the log is the caller's.
func (b *Builder) Finish(status Status, cause string) (*Log, error) {
	if b.done {
		return nil, ErrFinished
	}
	l := b.log
	l.Meta.Status, l.Meta.Cause = status, cause
	if l.Outcome == 0 {
		l.Outcome = b.head
	}
	l.acceptBranches()
	if l.ID == "" {
		l.ID = l.contentID()
	}
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("finish log %s: %w", l.ID, err)
	}
	b.done = true
	return &l, nil
}

// acceptBranches derives Branch.Accepted from the accepted history: from its end
// up, a span not yet covered by an accepted branch accepts its own.
func (l *Log) acceptBranches() {
	if len(l.Branches) == 0 {
		return
	}
	for i := range l.Branches {
		l.Branches[i].Accepted = false
	}
	history := l.History()
	kept := make([]int32, len(l.Branches))
	found := false
	for i := len(history) - 1; i >= 0; i-- {
		e := history[i]
		if e.Span == nil || int64(e.Branch) >= int64(len(kept)) || found && e.Span.End <= kept[e.Branch] {
			continue
		}
		if !l.Branches[e.Branch].Accepted {
			l.Branches[e.Branch].Accepted = true
			found = true
			kept = l.acceptedTokens()
		}
	}
	if !found {
		l.Branches[len(l.Branches)-1].Accepted = true
	}
}
