package rollout

import (
	"fmt"

	"github.com/skein-rl/skein/eventlog"
)

// TableDemonstrations is where demonstrations stand in the replay store.
const TableDemonstrations = "demonstrations"

// DemoLog writes a demonstration as a full-tier EventLog: its tokens exactly as
// EncodeDemo gives them, the assistant's turns written by an expert (so that
// supervised training takes them and reinforcement learning never does), the
// calls, results and texts as events over their spans. meta names the run; what
// belongs to the task is filled in. Equal demonstrations have equal ids.
func DemoLog(chat Chat, t Task, messages []Message, meta eventlog.Meta) (*eventlog.Log, error) {
	encoded, err := encodeDemo(chat, t.Tools, messages)
	if err != nil {
		return nil, err
	}
	meta.Table, meta.Source, meta.Task, meta.GroupSize = TableDemonstrations, t.Source, t.ID, 1
	d := demo{log: eventlog.NewBuilder(meta), encodedDemo: encoded}
	if _, err := d.log.Root(); err != nil {
		return nil, err
	}
	if err := d.write(t, messages); err != nil {
		return nil, fmt.Errorf("rollout: demonstration of %s %s: %w", t.Source, t.ID, err)
	}
	return d.log.Finish(eventlog.OK, "")
}

// demo walks the messages and the segments of equal train mark side by side:
// each assistant message is one trained segment, what stands between two is one
// of the environment.
type demo struct {
	encodedDemo
	log   *eventlog.Builder
	at    int
	calls int
}

// segment appends the next run of tokens of one mark.
func (d *demo) segment(writer eventlog.Writer) (eventlog.Span, error) {
	end := d.at
	for end < len(d.ids) && d.train[end] == d.train[d.at] {
		end++
	}
	span, err := d.log.AppendTokens(0, d.ids[d.at:end], nil, writer, 0)
	d.at = end
	return span, err
}

func (d *demo) write(t Task, messages []Message) error {
	span, err := d.segment(eventlog.Prompt)
	if err != nil {
		return err
	}
	specs, err := toolSpecs(t.Tools)
	if err != nil {
		return err
	}
	events := []eventlog.Event{eventlog.NewSystem(t.System, specs), eventlog.NewObservation("env", t.User).In(0, span)}
	turn := 0
	for i := 0; i < len(messages); {
		switch messages[i].Role {
		case "assistant":
			turn++
			if span, err = d.segment(eventlog.Expert); err != nil {
				return err
			}
			events = append(events, d.turn(d.turns[turn-1].parsed, span)...)
			i++
		case "tool":
			if span, err = d.segment(eventlog.Environment); err != nil {
				return err
			}
			for first := true; i < len(messages) && messages[i].Role == "tool"; i++ {
				ev := eventlog.NewToolResult(messages[i].CallID, messages[i].Content, "")
				if first {
					ev, first = ev.In(0, span), false
				}
				events = append(events, ev)
			}
			events = append(events, eventlog.NewTurnComplete(turn))
		default: // the opening, written above
			i++
		}
	}
	events = append(events, eventlog.NewTurnComplete(turn))
	for _, e := range events {
		if _, err := d.log.Append(e); err != nil {
			return err
		}
	}
	return nil
}

// turn gives the events of one assistant turn. The first one of the kind that
// weighs most (a call where there is one) holds the turn's tokens.
func (d *demo) turn(parsed Parsed, span eventlog.Span) []eventlog.Event {
	var events []eventlog.Event
	placed := false
	for i := range parsed.Parts {
		p := &parsed.Parts[i]
		var ev eventlog.Event
		switch {
		case p.Kind == PartReasoning:
			ev = eventlog.NewReasoning(p.Text)
		case p.Kind == PartCall:
			d.calls++
			p.Call.ID = CallID(d.calls)
			ev = callEvent(p)
		case p.Text == "":
			continue
		default:
			ev = eventlog.NewText(p.Text)
		}
		if !placed && (p.Kind == PartCall || parsed.Calls() == 0) {
			ev, placed = ev.In(0, span), true
		}
		events = append(events, ev)
	}
	return events
}
