package reward

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
)

type goldenCase struct {
	ID        string          `json:"id"`
	Reference json.RawMessage `json:"reference"`
	Calls     []tool.Call     `json:"calls"`
	Valid     bool            `json:"valid"`
	Kind      string          `json:"kind"`
}

// The verdicts were written by testdata/gen_ast_golden.py with the
// leaderboard's own Python checker. SKEIN_AST_GOLDEN names a larger file (the
// script without its last argument writes all 17,115 cases).
func TestMatchGivesTheReferenceCheckersVerdicts(t *testing.T) {
	path := "testdata/ast_golden.jsonl"
	if p := os.Getenv("SKEIN_AST_GOLDEN"); p != "" {
		path = p
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	n, valid, wrong := 0, 0, 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var c goldenCase
		require.NoError(t, json.Unmarshal(sc.Bytes(), &c))
		ref, err := DecodeASTReference(c.Reference)
		require.NoError(t, err, c.ID)
		err = ref.Match(c.Calls)
		if (err == nil) != c.Valid {
			wrong++
			if wrong < 20 {
				t.Errorf("%s: calls %+v: checker says valid=%v (%s), we say %v", c.ID, c.Calls, c.Valid, c.Kind, err)
			}
		}
		n++
		if c.Valid {
			valid++
		}
	}
	require.NoError(t, sc.Err())
	require.Zero(t, wrong)
	require.GreaterOrEqual(t, n, 300)
	require.Greater(t, valid, n/10, "the golden file must hold both verdicts")
	require.Less(t, valid, n*9/10, "the golden file must hold both verdicts")
}

const triangle = `{"function":{"name":"area","parameters":{"type":"dict","properties":{
	"base":{"type":"integer"},"height":{"type":"float"},"unit":{"type":"string"}},"required":["base","height"]}},
	"possible":{"area":{"base":[10],"height":[5.0],"unit":["square cm",""]}}}`

func TestASTScoreSlope(t *testing.T) {
	call := func(name, args string) tool.Call { return tool.Call{Name: name, Arguments: json.RawMessage(args)} }
	for _, c := range []struct {
		why   string
		calls []tool.Call
		want  float64
	}{
		{"exact, int for float, other spelling", []tool.Call{call("area", `{"base":10,"height":5,"unit":"Square-CM"}`)}, 1},
		{"optional left out", []tool.Call{call("area", `{"base":10,"height":5.0}`)}, 1},
		{"float for int", []tool.Call{call("area", `{"base":10.0,"height":5}`)}, 0.2},
		{"wrong value", []tool.Call{call("area", `{"base":11,"height":5}`)}, 0.2},
		{"missing parameter", []tool.Call{call("area", `{"base":10}`)}, 0.1},
		{"unknown parameter", []tool.Call{call("area", `{"base":10,"height":5,"depth":1}`)}, 0.1},
		{"wrong function", []tool.Call{call("volume", `{"base":10,"height":5}`)}, 0},
		{"no call", nil, 0},
		{"two calls", []tool.Call{call("area", `{"base":10,"height":5}`), call("area", `{"base":10,"height":5}`)}, 0},
		{"not an object", []tool.Call{call("area", `[1]`)}, 0},
		{"two values", []tool.Call{call("area", `{"base":10,"height":5} {}`)}, 0},
	} {
		s, err := Open("ast_match")
		require.NoError(t, err)
		got, err := s.Score(Sample{Calls: c.calls, Answer: json.RawMessage(triangle)})
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.why)
	}
}

func TestBrokenReferenceIsUnscored(t *testing.T) {
	for _, ref := range []string{``, `{}`, `{"function":{"name":"f"}}`, `{"function":{"name":"f"},"possible":{"f":{"a":1}}}`,
		`{"function":{"name":"f"},"possible":{"f":{},"g":{}}}`} {
		_, err := astScorer{}.Score(Sample{Answer: json.RawMessage(ref)})
		require.Error(t, err, ref)
	}
	ref, err := DecodeASTReference([]byte(`{"function":{"name":"f","parameters":{"properties":{"a":{"type":"matrix"}}}},"possible":{"f":{"a":[1]}}}`))
	require.NoError(t, err)
	err = ref.Match([]tool.Call{{Name: "f", Arguments: json.RawMessage(`{"a":1}`)}})
	var m *Mismatch
	require.True(t, errors.As(err, &m))
	require.Equal(t, "reference", m.Kind)
}

func FuzzASTMatch(f *testing.F) {
	f.Add([]byte(triangle), []byte(`{"base":10,"height":5}`))
	f.Add([]byte(`{"function":{"name":"area","parameters":{"properties":{"base":{"type":"array","items":{"type":"dict"}}}}},"possible":{"area":{"base":[[{"a":[1,""]}],""]}}}`), []byte(`{"base":[{"a":1}]}`))
	f.Fuzz(func(t *testing.T, refData, args []byte) {
		ref, err := DecodeASTReference(refData)
		if err != nil {
			return
		}
		_ = ref.Match([]tool.Call{{Name: ref.Function.Name, Arguments: args}})
	})
}
