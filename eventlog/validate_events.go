package eventlog

import (
	"fmt"
	"strconv"
	"strings"
)

func (l *Log) checkEvents(p *problems) {
	type piece struct {
		parent uint32
		kind   Kind
	}
	pending := map[piece]int{} // partial pieces not completed yet
	sound := true
	for i := range l.Events {
		e := &l.Events[i]
		at := "events[" + strconv.Itoa(i) + "]"
		if int64(e.Seq) != int64(i)+1 {
			p.add(at+".seq", e.Seq, "sequence numbers count from 1 without holes: want %d", i+1)
		}
		if int64(e.Parent) > int64(i) {
			p.add(at+".parent", e.Parent, "a parent precedes its child: want 0 to %d", i)
			sound = false
		} else if e.Parent > 0 && l.Events[e.Parent-1].Partial {
			p.add(at+".parent", e.Parent, "that event is partial and has no children; follow the event that completes it")
		}
		if key := (piece{e.Parent, e.Kind}); e.Partial {
			pending[key] = i
		} else {
			delete(pending, key)
		}
		l.checkEvent(p, at, e)
	}
	if l.Meta.Status == OK {
		for key, i := range pending {
			p.add(fmt.Sprintf("events[%d].partial", i), true,
				"no later %v event with parent %d completes it, which a log of status ok demands", key.kind, key.parent)
		}
	}
	if !sound {
		return
	}
	pairs := l.pairResults()
	for i := range l.Events {
		if e := &l.Events[i]; e.Kind == ToolResult && !e.Partial && e.CallID != "" {
			if _, ok := pairs[i]; !ok {
				p.add(fmt.Sprintf("events[%d].call_id", i), fmt.Sprintf("%q", e.CallID), "no tool call above it has this id")
			}
		}
	}
}

func (l *Log) checkEvent(p *problems, at string, e *Event) {
	if _, err := CanonicalJSON(e.Payload); err != nil {
		p.add(at+".payload", "invalid", "%v", err)
	} else if !e.Partial {
		checkPayload(p, at, e)
	}
	if e.Kind == KindUnknown || e.Kind > MemoryOp {
		p.add(at+".kind", e.Kind, "want one of the eight kinds")
	}
	if e.Kind == Reward && (e.Scope == NoScope || e.Scope > EpisodeScope) {
		p.add(at+".scope", e.Scope, "a reward judges a step, a turn or the episode")
	} else if e.Kind != Reward && e.Scope != NoScope {
		p.add(at+".scope", e.Scope, "only reward events have a scope; leave it none on %v", e.Kind)
	}
	p.text(at+".author", e.Author)
	p.text(at+".call_id", e.CallID)
	if !validAuthor(e.Author) {
		p.add(at+".author", fmt.Sprintf("%q", e.Author), `want "agent", "agent:<name>", "human:<id>", "tool:<name>", "env" or "retrieval"`)
	}
	p.time(at+".start", e.Start)
	p.time(at+".end", e.End)
	if !e.Start.IsZero() && !e.End.IsZero() && e.End.Before(e.Start) {
		p.add(at+".end", e.End, "before start = %v", e.Start)
	}
	if s := e.Span; s != nil {
		if int64(e.Branch) >= int64(len(l.Branches)) {
			p.add(at+".branch", e.Branch, "the span needs a branch and there are %d", len(l.Branches))
		} else if n := len(l.Branches[e.Branch].IDs); s.Start < 0 || s.End < s.Start || int(s.End) > n {
			p.add(at+".span", fmt.Sprintf("[%d,%d)", s.Start, s.End), "want 0 <= start <= end <= %d, the tokens of branch %d", n, e.Branch)
		}
	}
}

// validAuthor knows the authors of the contract.
func validAuthor(a string) bool {
	switch a {
	case "agent", "env", "retrieval":
		return true
	}
	role, id, ok := strings.Cut(a, ":")
	return ok && id != "" && (role == "agent" || role == "human" || role == "tool")
}

// checkPayload checks the keys SPEC 1.1 gives a kind. Others are welcome.
func checkPayload(p *problems, at string, e *Event) {
	bad := func(key, remedy string) {
		v, ok := e.Payload[key]
		if !ok {
			v = "<absent>"
		}
		p.add(at+".payload."+key, fmt.Sprintf("%.80s", fmt.Sprint(v)), "%s", remedy)
	}
	str := func(key string, required bool) {
		v, ok := e.Payload[key]
		if _, is := v.(string); ok && !is || required && !ok {
			bad(key, "want a string in an event of kind "+e.Kind.String())
		}
	}
	switch e.Kind {
	case Text, Reasoning, Observation:
		str("text", true)
	case ToolCall:
		if e.Payload["action"] == nil {
			str("stage", false)
			if e.Payload["stage"] == nil {
				bad("action", "want an action (or a stage) in a tool call")
			}
		}
		if e.CallID == "" {
			for _, c := range e.Calls() {
				if c.ID == "" || strings.HasPrefix(c.ID, "/") {
					p.add(at+".call_id", `""`, "a tool call needs an id for its result; Builder.Append gives one")
					break
				}
			}
		}
	case ToolResult:
		str("error", false)
		_, output := e.Payload["output"]
		if _, failed := e.Payload["error"]; !output && !failed {
			bad("output", "want an output, an error or both in a tool result")
		}
		if e.CallID == "" {
			p.add(at+".call_id", `""`, "a tool result needs the id of its call; Builder.Append finds it where only one call is open")
		}
	case TurnComplete:
		if v, ok := number(e.Payload["step"]); !ok || v < 0 || v != float64(int64(v)) {
			bad("step", "want a whole number from 0")
		}
	case Reward:
		if _, ok := number(e.Payload["value"]); !ok {
			bad("value", "want a finite number; an unscored episode has no reward event")
		}
	case MemoryOp:
		switch e.Payload["op"] {
		case "ADD", "UPDATE", "DELETE", "NOOP":
		default:
			bad("op", "want ADD, UPDATE, DELETE or NOOP")
		}
		str("id", false)
		str("kind", false)
	}
}
