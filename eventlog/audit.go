package eventlog

// AuditRecord is one tool call as the failure detector reads it (SPEC 1.3 P4).
type AuditRecord struct {
	TrajectoryID string `json:"trajectory_id"`
	// StageName is the tool's name and, where there are any, its arguments as
	// canonical JSON: calls repeated with the same arguments have one stage
	// name, which is how a loop shows.
	StageName string `json:"stage_name"`
	ToolName  string `json:"tool_name"`  // "unknown" when the action names none
	StageType string `json:"stage_type"` // "tool_call"
	// StateSnapshot is {"arguments": ...}.
	StateSnapshot map[string]any `json:"state_snapshot"`
	// Status is the payload's status or "ok"; "error" when the call's result
	// has an error, which ErrorDetails then holds.
	Status       string `json:"status"`
	ErrorDetails string `json:"error_details,omitempty"`
	CallID       string `json:"call_id,omitempty"`
	// Accepted is false for a call of a rejected alternative: a search that
	// tries one call in several branches is not a loop.
	Accepted bool `json:"accepted"`
	// Seq is the event of the call.
	Seq uint32 `json:"seq"`
}

// AuditRecords projects every tool call, those of rejected alternatives
// included, in event order. Results find their call by id. Any tier.
func (l *Log) AuditRecords() []AuditRecord {
	accepted := l.acceptedSeqs()
	recs := []AuditRecord{}
	first := map[int]int{} // event index -> its first record
	for i := range l.Events {
		e := &l.Events[i]
		if e.Kind != ToolCall || e.Partial {
			continue
		}
		first[i] = len(recs)
		status, _ := e.Payload["status"].(string)
		if status == "" {
			status = "ok"
		}
		for _, c := range e.Calls() {
			r := AuditRecord{
				TrajectoryID: l.ID, ToolName: c.Name, StageType: "tool_call", StateSnapshot: map[string]any{"arguments": clone(c.Arguments)},
				Status: status, CallID: c.ID, Accepted: accepted[i+1], Seq: e.Seq,
			}
			if r.ToolName == "" {
				r.ToolName = "unknown"
			}
			r.StageName = r.ToolName
			if args := compact(c.Arguments); args != "{}" && args != "[]" && args != "null" && args != `""` {
				r.StageName += " " + args
			}
			recs = append(recs, r)
		}
	}
	pairs := l.pairResults()
	for i := range l.Events {
		ref, ok := pairs[i]
		if msg, _ := l.Events[i].Payload["error"].(string); ok && msg != "" {
			r := &recs[first[ref.event]+ref.call]
			r.Status, r.ErrorDetails = "error", msg
		}
	}
	return recs
}
