package openai

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

var stock = openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
	Name: "stock", Description: openai.String("How many of an item are in stock"),
	Parameters: openai.FunctionParameters{"type": "object", "properties": obj{"item": obj{"type": "string", "enum": []string{"apple", "pear"}}, "count": obj{"type": "integer", "minimum": 0, "maximum": 9}}, "required": []string{"item", "count"}},
})

// A required call is one, whatever the model would rather write; streamed and
// whole answers agree.
func TestChatToolCalls(t *testing.T) {
	s := serveTiny(t, "")
	c := s.client()
	params := openai.ChatCompletionNewParams{
		Model: "tiny", Seed: openai.Int(4), Temperature: openai.Float(1), MaxCompletionTokens: openai.Int(200),
		Messages:   []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("You sell fruit."), openai.UserMessage("How many pears?")},
		Tools:      []openai.ChatCompletionToolUnionParam{stock},
		ToolChoice: openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}, ParallelToolCalls: openai.Bool(false),
	}
	got, err := c.Chat.Completions.New(context.Background(), params)
	require.NoError(t, err)
	ch := got.Choices[0]
	require.Equal(t, "tool_calls", string(ch.FinishReason))
	require.Len(t, ch.Message.ToolCalls, 1)
	call := ch.Message.ToolCalls[0]
	require.Equal(t, "stock", call.Function.Name)
	require.NotEmpty(t, call.ID)
	var args struct {
		Item  string
		Count int
	}
	require.NoError(t, json.Unmarshal([]byte(call.Function.Arguments), &args))
	require.Contains(t, []string{"apple", "pear"}, args.Item)
	require.LessOrEqual(t, args.Count, 9)

	acc := openai.ChatCompletionAccumulator{}
	stream := c.Chat.Completions.NewStreaming(context.Background(), params)
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	require.NoError(t, stream.Err())
	require.Equal(t, "stock", acc.Choices[0].Message.ToolCalls[0].Function.Name)
	require.Equal(t, call.Function.Arguments, acc.Choices[0].Message.ToolCalls[0].Function.Arguments)
	require.Equal(t, ch.FinishReason, acc.Choices[0].FinishReason)
	require.Equal(t, ch.Message.Content, acc.Choices[0].Message.Content)

	// The call and its result come back as history.
	params.Messages = append(params.Messages, ch.Message.ToParam(), openai.ToolMessage(`{"left": 3}`, call.ID))
	params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
	params.ParallelToolCalls = openai.ChatCompletionNewParams{}.ParallelToolCalls
	next, err := c.Chat.Completions.New(context.Background(), params)
	require.NoError(t, err)
	require.Empty(t, next.Choices[0].Message.ToolCalls)
	require.Greater(t, next.Usage.PromptTokens, got.Usage.PromptTokens)
}

func TestChatStructuredOutput(t *testing.T) {
	s := serveTiny(t, "")
	schema := obj{"type": "object", "properties": obj{"ok": obj{"type": "boolean"}, "name": obj{"type": "string", "maxLength": 5}, "tags": obj{"type": "array", "items": obj{"enum": []any{"a", "b"}}, "maxItems": 3}}, "required": []string{"ok", "name", "tags"}, "additionalProperties": false}
	compiler := jsonschema.NewCompiler()
	data, err := json.Marshal(schema)
	require.NoError(t, err)
	var parsed any
	require.NoError(t, json.Unmarshal(data, &parsed))
	require.NoError(t, compiler.AddResource("s.json", parsed))
	check, err := compiler.Compile("s.json")
	require.NoError(t, err)
	for seed := range 8 {
		status, got := s.post(t, "/v1/chat/completions", obj{"messages": []obj{{"role": "user", "content": "Report."}}, "seed": seed, "temperature": 1.5, "max_tokens": 300,
			"response_format": obj{"type": "json_schema", "json_schema": obj{"name": "report", "schema": schema, "strict": true}}})
		require.Equal(t, 200, status, got)
		c := got["choices"].([]any)[0].(obj)
		require.Equal(t, "stop", c["finish_reason"], c)
		var value any
		require.NoError(t, json.Unmarshal([]byte(c["message"].(obj)["content"].(string)), &value), c)
		require.NoError(t, check.Validate(value))
	}
	for _, guide := range []obj{{"choice": []string{"yes", "no"}}, {"regex": "(yes|no)"}, {"grammar": `root ::= "yes" | "no"`}} {
		status, got := s.post(t, "/v1/chat/completions", obj{"messages": []obj{{"role": "user", "content": "Well?"}}, "structured_outputs": guide, "max_tokens": 50})
		require.Equal(t, 200, status, got)
		require.Contains(t, []string{"yes", "no"}, got["choices"].([]any)[0].(obj)["message"].(obj)["content"], guide)
	}
}

// Logprobs and ids align with the tokens, also streamed and with alternatives.
func TestChatLogprobsAndIDs(t *testing.T) {
	s := serveTiny(t, "")
	body := obj{"model": "tiny", "messages": []obj{{"role": "user", "content": "Hello"}}, "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 9, "seed": 1, "return_token_ids": true}
	status, got := s.post(t, "/v1/chat/completions", body)
	require.Equal(t, 200, status, got)
	c := got["choices"].([]any)[0].(obj)
	ids := c["token_ids"].([]any)
	lps := c["logprobs"].(obj)["content"].([]any)
	require.Len(t, lps, len(ids))
	require.NotEmpty(t, got["prompt_token_ids"])
	for i, e := range lps {
		e := e.(obj)
		require.Len(t, e["top_logprobs"], 3)
		require.Equal(t, s.h.tokenText(int32(ids[i].(float64))), e["token"])
		require.GreaterOrEqual(t, e["top_logprobs"].([]any)[0].(obj)["logprob"], e["logprob"])
	}
	require.EqualValues(t, []any{obj{"end": float64(len(ids)), "version": 0.0}}, c["policy_versions"])

	client := s.client()
	stream := client.Chat.Completions.NewStreaming(context.Background(), openai.ChatCompletionNewParams{
		Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}, Logprobs: openai.Bool(true),
		MaxCompletionTokens: openai.Int(9), Seed: openai.Int(1), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}, option.WithJSONSet("return_token_ids", true))
	text, n := "", 0
	var usage openai.CompletionUsage
	for stream.Next() {
		chunk := stream.Current()
		if chunk.Usage.TotalTokens > 0 {
			usage = chunk.Usage
		}
		for _, ch := range chunk.Choices {
			text += ch.Delta.Content
			n += len(ch.Logprobs.Content)
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, c["message"].(obj)["content"], text)
	require.Equal(t, len(ids), n)
	require.EqualValues(t, len(ids), usage.CompletionTokens)
}

func TestChatRefusals(t *testing.T) {
	s := serveTiny(t, "")
	user := []obj{{"role": "user", "content": "x"}}
	tools := []obj{{"type": "function", "function": obj{"name": "f"}}}
	for _, c := range []struct {
		body obj
		want string
	}{
		{obj{"messages": []obj{}}, "messages is empty"},
		{obj{"messages": []obj{{"role": "robot", "content": "x"}}}, `messages[0].role "robot" is unknown`},
		{obj{"messages": []obj{{"role": "user", "content": []obj{{"type": "image_url"}}}}}, `content part of type "image_url" is not supported`},
		{obj{"messages": user, "tool_choice": "required"}, "needs tools"},
		{obj{"messages": user, "tools": tools, "tool_choice": "maybe"}, `tool_choice "maybe" is unknown`},
		{obj{"messages": user, "tools": tools, "tool_choice": obj{"type": "function", "function": obj{"name": "g"}}}, `names "g", which is not among the tools`},
		{obj{"messages": user, "tools": append(tools, tools...)}, `tool "f" is given twice`},
		{obj{"messages": user, "tools": []obj{{"type": "search"}}}, `tools[0].type is "search"`},
		{obj{"messages": user, "top_logprobs": 2}, "top_logprobs needs logprobs"},
		{obj{"messages": user, "logprobs": true, "top_logprobs": 50}, "top_logprobs is 50"},
		{obj{"messages": user, "max_completion_tokens": 0}, "max_completion_tokens is 0"},
		{obj{"messages": user, "audio": obj{"voice": "x"}}, "audio is not supported"},
		{obj{"messages": user, "response_format": obj{"type": "xml"}}, `response_format type "xml"`},
		{obj{"messages": user, "response_format": obj{"type": "json_schema"}}, "needs json_schema.schema"},
		{obj{"messages": user, "response_format": obj{"type": "json_object"}, "tools": tools, "tool_choice": "required"}, "cannot also be tool calls"},
		{obj{"messages": user, "structured_outputs": obj{"regex": "("}}, "structured_outputs.regex"},
		{obj{"messages": user, "structured_outputs": obj{"json": obj{"type": "widget"}}}, "structured_outputs.json"},
		{obj{"messages": user, "structured_outputs": obj{"regex": "a", "choice": []string{"b"}}}, "exactly one"},
		{obj{"messages": []obj{{"role": "assistant", "tool_calls": []obj{{"id": "1", "function": obj{"name": "f", "arguments": "{"}}}}}}, "arguments is no JSON"},
	} {
		status, got := s.post(t, "/v1/chat/completions", c.body)
		require.Equal(t, 400, status, "%v: %v", c.body, got)
		require.Contains(t, got["error"].(obj)["message"], c.want)
	}
}

// A client that leaves frees its slot.
func TestChatCancelled(t *testing.T) {
	s := serveTiny(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	c := s.client()
	stream := c.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}, MaxCompletionTokens: openai.Int(400),
	}, option.WithJSONSet("ignore_eos", true))
	require.True(t, stream.Next())
	cancel()
	for stream.Next() {
	}
	require.Error(t, stream.Err())
	require.Eventually(t, func() bool { st := s.engine.Stats(); return st.Active == 0 && st.Requests == 1 }, deadline, tick)
}
