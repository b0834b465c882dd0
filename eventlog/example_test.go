package eventlog_test

import (
	"fmt"

	"github.com/skein-rl/skein/eventlog"
)

// A rollout writes its log: tokens first, then the event that points at them.
func Example() {
	b := eventlog.NewBuilder(eventlog.Meta{Run: "demo", Group: "g-17", Member: 0, GroupSize: 4, Table: "train"})
	prompt, err := b.AppendTokens(0, []int32{101, 102}, nil, eventlog.Prompt, 0)
	check(err)
	_, err = b.Append(eventlog.NewObservation("env", "what is 6*7?").In(0, prompt))
	check(err)
	call, err := b.AppendTokens(0, []int32{7, 8, 9}, []float32{-0.1, -0.7, 0}, eventlog.Policy, 12)
	check(err)
	_, err = b.Append(eventlog.NewToolCall("call_1", "calc", map[string]any{"expr": "6*7"}).In(0, call))
	check(err)
	result, err := b.AppendTokens(0, []int32{50}, nil, eventlog.Environment, 0)
	check(err)
	_, err = b.Append(eventlog.NewToolResult("call_1", "42", "").In(0, result))
	check(err)
	answer, err := b.AppendTokens(0, []int32{42, 2}, []float32{-0.2, -0.1}, eventlog.Policy, 13)
	check(err)
	_, err = b.Append(eventlog.NewText("42").In(0, answer))
	check(err)
	_, err = b.Append(eventlog.NewReward(eventlog.EpisodeScope, 1))
	check(err)
	log, err := b.Finish(eventlog.OK, "")
	check(err)

	data, err := eventlog.Encode(log)
	check(err)
	log, err = eventlog.Decode(data)
	check(err)
	lowest, highest, sampled := log.PolicyVersions()
	fmt.Println("versions", lowest, "to", highest, "sampled", sampled)
	rows, err := log.TrainRows(0)
	check(err)
	fmt.Println("mask", rows[0].Mask)
	sft, err := log.DatasetRows("sft", eventlog.RowOptions{})
	check(err)
	for i, m := range sft[0].Messages {
		fmt.Println(m.Role, m.Content, sft[0].SegmentWeights[i])
	}
	// Output:
	// versions 12 to 13 sampled 5
	// mask [false false true true true false true true]
	// user what is 6*7? 0
	// assistant <tool_call>{"name":"calc","arguments":{"expr":"6*7"}}</tool_call> 2
	// tool 42 0
	// assistant 42 1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
