package tool

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bookSchema = `{"type":"object","properties":{
	"title":{"type":"string","minLength":1,"maxLength":10},
	"copies":{"type":"integer","minimum":1,"maximum":5},
	"price":{"type":"number"},
	"format":{"type":"string","enum":["paper","audio"]},
	"tags":{"type":"array","items":{"type":"string"},"maxItems":2},
	"extra":{"type":"object","additionalProperties":true},
	"gift":{"type":["boolean","null"]}},
	"required":["title"]}`

func TestValidateArguments(t *testing.T) {
	s, err := ParseSchema(json.RawMessage(bookSchema))
	require.NoError(t, err)
	for _, c := range []struct{ args, want string }{
		{`{"title":"Go"}`, ""},
		{`{"title":"Go","copies":2.0,"price":3,"format":"audio","tags":["a","b"],"extra":{"x":1},"gift":null}`, ""},
		{`{}`, "title: missing"},
		{`{"title":""}`, "title: shorter than 1"},
		{`{"title":"longer than ten"}`, "title: longer than 10"},
		{`{"title":5}`, "title: expected string, got integer"},
		{`{"title":"Go","copies":2.5}`, "copies: expected integer, got number"},
		{`{"title":"Go","copies":"2"}`, "copies: expected integer, got string"},
		{`{"title":"Go","copies":9}`, "copies: greater than 5"},
		{`{"title":"Go","copies":0}`, "copies: less than 1"},
		{`{"title":"Go","format":"vinyl"}`, `format: not one of ["paper","audio"]`},
		{`{"title":"Go","tags":["a",1]}`, "tags[1]: expected string, got integer"},
		{`{"title":"Go","tags":["a","b","c"]}`, "tags: more than 2 items"},
		{`{"title":"Go","gift":"yes"}`, "gift: expected boolean or null, got string"},
		{`{"title":"Go","author":"x"}`, "author: unknown; known: copies, extra, format, gift, price, tags, title"},
		{`[1]`, "expected an object, got array"},
		{`7`, "expected an object, got integer"},
		{`{"title":`, "not JSON"},
		{`{"title":"Go"} {}`, "more than one JSON value"},
	} {
		err := s.Validate(json.RawMessage(c.args))
		if c.want == "" {
			require.NoError(t, err, c.args)
		} else {
			require.ErrorContains(t, err, c.want, c.args)
		}
	}
	err = s.Validate(json.RawMessage(`{"copies":"x","price":true}`))
	require.ErrorContains(t, err, "title: missing")
	require.ErrorContains(t, err, "copies: expected integer")
	require.ErrorContains(t, err, "price: expected number", "every problem is reported")
}

func TestSchemaRefusesWhatItWouldNotCheck(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{"type":"object","patternProperties":{}}`, "patternProperties"},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"x"}}}`, "pattern"},
		{`{"type":"string"}`, `must be "object"`},
		{`{"type":"object","properties":{"a":{"type":"text"}}}`, `unknown type "text"`},
		{`{"type":"object","required":["a"]}`, `required "a"`},
		{`{"type":3}`, "neither a name"},
		{`nonsense`, "invalid character"},
	} {
		_, err := ParseSchema(json.RawMessage(c.schema))
		require.ErrorContains(t, err, c.want, c.schema)
	}
}

func echo(_ context.Context, args json.RawMessage) (string, error) { return string(args), nil }

func TestRegistry(t *testing.T) {
	ctx := context.Background()
	r, err := NewRegistry(
		Tool{Spec: Spec{Name: "echo", Parameters: json.RawMessage(bookSchema)}, Func: echo},
		Tool{Spec: Spec{Name: "crash"}, Func: func(context.Context, json.RawMessage) (string, error) { panic("boom") }},
		Calculator("calc"),
	)
	require.NoError(t, err)
	require.Len(t, r.Specs(), 3)

	out, err := r.Call(ctx, Call{Name: "calc", Arguments: json.RawMessage(`{"expr":"6*7"}`)})
	require.NoError(t, err)
	require.Equal(t, "42", out)

	_, err = r.Call(ctx, Call{Name: "calc", Arguments: json.RawMessage(`{"expr":"1/0"}`)})
	require.ErrorContains(t, err, "division by zero")
	_, err = r.Call(ctx, Call{Name: "search"})
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorContains(t, err, "echo, crash, calc")
	_, err = r.Call(ctx, Call{Name: "echo", Arguments: json.RawMessage(`{}`)})
	require.ErrorIs(t, err, ErrArguments)
	_, err = r.Call(ctx, Call{Name: "crash", Arguments: json.RawMessage(`{}`)})
	require.ErrorContains(t, err, "panic: boom")

	require.ErrorContains(t, r.Add(Tool{Spec: Spec{Name: "calc"}, Func: echo}), "twice")
	require.ErrorContains(t, r.Add(Tool{Func: echo}), "name is empty")
	require.ErrorContains(t, r.Add(Tool{Spec: Spec{Name: "x"}}), "Func is nil")
	require.ErrorContains(t, r.Add(Tool{Spec: Spec{Name: "x"}, Func: echo, Timeout: -1}), "negative")
}

// P8: a tool that ignores its context delays nobody.
func TestStuckToolTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := Tool{Spec: Spec{Name: "stuck"}, Timeout: time.Minute, Func: func(context.Context, json.RawMessage) (string, error) {
			<-release
			return "late", nil
		}}
		polite := Tool{Spec: Spec{Name: "polite"}, Func: func(ctx context.Context, _ json.RawMessage) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}}
		r, err := NewRegistry(stuck, polite)
		require.NoError(t, err)
		begin := time.Now()
		_, err = r.Call(t.Context(), Call{Name: "stuck", Arguments: json.RawMessage(`{}`)})
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "1m0s")
		require.Equal(t, time.Minute, time.Since(begin))
		_, err = r.Call(t.Context(), Call{Name: "polite", Arguments: json.RawMessage(`{}`)})
		require.ErrorIs(t, err, ErrTimeout)
		close(release)

		cause := errors.New("rollout over")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err = r.Call(ctx, Call{Name: "polite", Arguments: json.RawMessage(`{}`)})
		require.ErrorIs(t, err, cause)
		_, err = r.Call(ctx, Call{Name: "polite", Arguments: json.RawMessage(`{}`)})
		require.ErrorIs(t, err, cause)
	})
}

func FuzzValidate(f *testing.F) {
	f.Add([]byte(bookSchema), []byte(`{"title":"Go","tags":["a"]}`))
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, schema, args []byte) {
		s, err := ParseSchema(schema)
		if err == nil {
			_ = s.Validate(args)
		}
	})
}
