package eventlog

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const chat = `{"id":"chat-1","messages":[` +
	`{"role":"system","content":"be brief"},` +
	`{"role":"user","content":[{"type":"text","text":"weather in "},{"type":"text","text":"Oslo?"}]},` +
	`{"role":"assistant","content":null,"reasoning_content":"look it up","tool_calls":[` +
	`{"id":"a","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Oslo\", \"days\": 1.0}"}},` +
	`{"id":"b","type":"function","function":{"name":"weather","arguments":"{\"city\":"}}]},` +
	`{"role":"tool","tool_call_id":"b","content":"bad arguments"},` +
	`{"role":"tool","tool_call_id":"a","content":"clear"},` +
	`{"role":"assistant","content":"clear","name":"writer"},` +
	`{"role":"user","name":"ann","content":"thanks"}],` +
	`"tools":[{"type":"function","function":{"name":"weather"}}],"reward":0.5}`

func TestImportMessages(t *testing.T) {
	logs, err := ImportMessages([]byte("\n" + chat + "\n[{\"role\":\"user\",\"content\":\"hi\"}]\n"))
	require.NoError(t, err)
	require.Len(t, logs, 2)
	l := logs[0]
	require.Equal(t, "chat-1", l.ID)
	require.Equal(t, Light, l.Tier)
	var got []string
	for _, e := range l.Events {
		got = append(got, e.Kind.String()+" "+e.Author+" "+e.CallID)
	}
	require.Equal(t, []string{
		"observation env ", "observation human:user ", "reasoning agent ", "tool_call agent a", "tool_call agent b",
		"tool_result tool:weather b", "tool_result tool:weather a", "turn_complete env ", "text agent:writer ", "turn_complete env ",
		"observation human:ann ", "reward env ",
	}, got)
	require.Equal(t, "weather in Oslo?", l.Events[1].Payload["text"])
	require.Equal(t, `{"city":`, l.Events[4].Calls()[0].Malformed)
	require.Equal(t, "human:user", logs[1].Events[0].Author)
	require.NotEmpty(t, logs[1].ID)

	// Exported, it is the same conversation in canonical spelling.
	out := string(must(ExportMessages(l)))
	require.Equal(t, `{"id":"chat-1","messages":[{"content":"be brief","role":"system"},`+
		`{"content":"weather in Oslo?","role":"user"},`+
		`{"content":null,"reasoning_content":"look it up","role":"assistant","tool_calls":[`+
		`{"function":{"arguments":"{\"city\":\"Oslo\",\"days\":1.0}","name":"weather"},"id":"a","type":"function"},`+
		`{"function":{"arguments":"{\"city\":","name":"weather"},"id":"b","type":"function"}]},`+
		`{"content":"bad arguments","role":"tool","tool_call_id":"b"},{"content":"clear","role":"tool","tool_call_id":"a"},`+
		`{"content":"clear","name":"writer","role":"assistant"},{"content":"thanks","name":"ann","role":"user"}],`+
		`"reward":0.5,"tools":[{"function":{"name":"weather"},"type":"function"}]}`+"\n", out)
	back := must(ImportMessages([]byte(out)))
	require.Equal(t, l.Digest(), back[0].Digest())
}

func TestImportMessagesErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"messages":[]}`:                  `no "messages"`,
		`{`:                                "line 1:",
		`[{"role":"robot","content":"x"}]`: `messages[0]: eventlog: invalid log: role "robot"`,
		`[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]`:                   `content[0] of type "image_url"`,
		`[{"role":"user","content":3}]`:                                                       "content is neither",
		`[{"role":"tool","content":"x"}]`:                                                     "tool message without tool_call_id",
		`[{"role":"tool","tool_call_id":"z","content":"x"}]`:                                  `no tool call above has the id "z"`,
		`[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}]`:      "tool_calls[0] wants an id",
		`[{"role":"assistant","content":null,"tool_calls":["f"]}]`:                            "tool_calls[0] is no object",
		`[{"role":"user","content":"x","tool_calls":[{"id":"a","function":{"name":"f"}}]}]`:   "only the assistant calls tools",
		`[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}]`: "legacy function_call",
	} {
		_, err := ImportMessages([]byte(line))
		require.ErrorIs(t, err, ErrInvalid, line)
		require.ErrorContains(t, err, want)
	}
}

// What the messages form can hold survives it: exporting an import gives the
// export it was imported from.
func TestPropertyMessagesStable(t *testing.T) {
	checkLogs(t, func(t *rapid.T, l *Log) {
		first := must(ExportMessages(l))
		if strings.Contains(string(first), `"messages":[]`) {
			return
		}
		logs, err := ImportMessages(first)
		if err != nil {
			if strings.Contains(err.Error(), "wants an id") {
				return // a call with an empty id or name
			}
			t.Fatal(err)
		}
		second := must(ExportMessages(logs...))
		if string(first) != string(second) {
			t.Fatalf("first  %s\nsecond %s", first, second)
		}
	})
}
