package rollout

import (
	"sort"

	"github.com/skein-rl/skein/eventlog"
)

// record writes a turn to transcript and log: its tokens once, and one event
// for each part with the tokens that are its.
func (e *episode) record(gen Generation) (Parsed, error) {
	first, at := int32(0), 0
	for i, r := range gen.Versions {
		span, err := e.log.AppendTokens(e.branch, gen.IDs[at:r.End], gen.Logprobs[at:r.End], eventlog.Policy, r.Version)
		if err != nil {
			return Parsed{}, err
		}
		if i == 0 {
			first = span.Start
		}
		at = r.End
	}
	e.sampled += len(gen.IDs)
	turn := e.script.emitted(gen.IDs, gen.Finish == FinishStop)
	content, parsed := turn.content, turn.parsed
	ends := make([]int, len(parsed.Parts))
	for i, p := range parsed.Parts {
		ends[i] = p.End
	}
	events := e.partEvents(content, parsed, gen.Finish)
	bounds := tokenEnds(e.loop.chat, gen.IDs, ends)
	start := first
	for i, ev := range events {
		if ev == nil {
			continue // blank text: its tokens go to the next part
		}
		end := first + int32(len(gen.IDs))
		if anyLater(events[i+1:]) {
			end = first + int32(bounds[i])
		}
		if err := e.append(ev.In(e.branch, eventlog.Span{Start: start, End: end})); err != nil {
			return Parsed{}, err
		}
		start = end
	}
	return parsed, nil
}

func anyLater(events []*eventlog.Event) bool {
	for _, ev := range events {
		if ev != nil {
			return true
		}
	}
	return false
}

// partEvents makes the event of each part, nil for blank text beside others. It
// gives the calls their ids. A turn that was cut executes nothing, so its calls
// are only text.
func (e *episode) partEvents(content string, parsed Parsed, finish Finish) []*eventlog.Event {
	var events []*eventlog.Event
	only := true
	at := 0
	for i := range parsed.Parts {
		p := &parsed.Parts[i]
		raw := content[at:p.End]
		at = p.End
		var ev eventlog.Event
		switch {
		case p.Kind == PartReasoning:
			ev = eventlog.NewReasoning(p.Text)
		case p.Kind == PartText && p.Text == "":
			events = append(events, nil)
			continue
		case p.Kind == PartText:
			ev = eventlog.NewText(p.Text)
		case finish == FinishLength:
			ev = eventlog.NewText(raw)
			ev.Payload["truncated"] = true
		default:
			e.nCalls++
			p.Call.ID = CallID(e.nCalls)
			ev = callEvent(p)
		}
		only = false
		ev.Start, ev.End = e.began, e.loop.now()
		events = append(events, &ev)
	}
	if only { // nothing but blanks, or nothing at all
		ev := eventlog.NewText("")
		ev.Start, ev.End = e.began, e.loop.now()
		events = append(events[:0], &ev)
	}
	return events
}

func callEvent(p *Part) eventlog.Event {
	if p.Err != nil {
		ev := eventlog.NewToolCall(p.Call.ID, p.Call.Name, p.Text)
		ev.Payload["status"] = "malformed"
		return ev
	}
	args, err := decodeJSON(p.Call.Arguments)
	if err != nil { // ParseTurn compacted them, so they are JSON
		args = string(p.Call.Arguments)
	}
	return eventlog.NewToolCall(p.Call.ID, p.Call.Name, args)
}

// tokenEnds maps byte offsets in the decoded text of ids to token offsets: the
// number of tokens whose text begins before the offset. Offsets ascend.
func tokenEnds(chat Chat, ids []int32, offsets []int) []int {
	out := make([]int, len(offsets))
	at := 0
	for i, off := range offsets {
		at += sort.Search(len(ids)-at, func(k int) bool { return len(chat.Decode(ids[:at+k])) >= off })
		out[i] = at
	}
	return out
}
