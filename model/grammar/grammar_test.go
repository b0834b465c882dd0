package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

func TestEBNF(t *testing.T) {
	for name, c := range map[string]struct {
		source  string
		yes, no []string
	}{
		"sum": {"# a sum\nroot ::= term (op term)*\nterm ::= [0-9]+ | \"(\" root \")\"\nop ::= \" \"? [-+*/] \" \"?\n",
			[]string{"1", "1+2", "(1 - 20)*3"}, []string{"", "1+", "(1", "1++2"}},
		"lines":       {"root ::= \"a\"\n  | \"b\" c\nc ::=\n  \"\\x41\\u00e9\" . ", []string{"a", "bAéz", "bAé\n"}, []string{"b", "bAe"}},
		"classes":     {`root ::= [^a-c\n] [\]\-x]{2} [a-]`, []string{"z]-a", "日xx-"}, []string{"axxa", "\nxxa", "zxa"}},
		"repetitions": {`root ::= "a"{2} "b"{1,} "c"{0,2}`, []string{"aab", "aabbbcc"}, []string{"ab", "aa", "aabccc"}},
		"empty":       {"root ::= \"x\"* y\ny ::= | \"y\"", []string{"", "xx", "xy"}, []string{"yx"}},
		"nested":      {`root ::= "[" (root ("," root)*)? "]"`, []string{"[]", "[[],[[]]]"}, []string{"[", "[,]"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := EBNF(c.source)
			require.NoError(t, err)
			for _, s := range c.yes {
				require.True(t, matches(t, g, s), "should be accepted: %q", s)
			}
			for _, s := range c.no {
				require.False(t, matches(t, g, s), "should be refused: %q", s)
			}
		})
	}
	for source, want := range map[string]string{
		"":                               `rule "root" is used and not defined`,
		"root ::= x":                     `rule "x" is used and not defined`,
		"root ::= \"a\nb ::= \"c\"":      "line 1: a text or class is not closed",
		"root ::= [a":                    "not closed",
		"root ::= (\"a\"":                "group is not closed",
		"root ::= \"a\" )":               "unexpected",
		"root := 1":                      "expected ::=",
		"root ::= \"a\"\nroot ::= \"b\"": "line 2: rule \"root\" is defined twice",
		"root ::= root \"a\" | \"b\"":    "left recursion",
		"root ::= x\nx ::= \"\"* root":   "can never be complete",
		"root ::= a \"x\" | \"y\"\na ::= \"z\"? root": "left recursion",
		"root ::= \"a\" root":                         "can never be complete",
		"root ::= [z-a]":                              "empty",
		"root ::= \"a\"{3,2}":                         "m up to n",
		"root ::= (\"a\"?){2,9}":                      "may be empty is repeated",
		"root ::= \"\\q\"":                            "unknown escape",
		"root ::= \"\\u12\"":                          "hexadecimal",
		"root ::= " + strings.Repeat("(", 1000):       "nested deeper",
	} {
		_, err := EBNF(source)
		require.ErrorIs(t, err, ErrGrammar, source)
		require.ErrorContains(t, err, want, source)
	}
}

func TestRegexAndChoice(t *testing.T) {
	g, err := Regex(`(?i)yes|no{1,2}|\p{Greek}+[^x]`)
	require.NoError(t, err)
	for s, want := range map[string]bool{"YeS": true, "noO": true, "αβγ1": true, "y": false, "yes ": false, "αx": false} {
		require.Equal(t, want, matches(t, g, s), s)
	}
	for _, p := range []string{`a\b`, `(?=a)`, `(`, `a$b`} {
		_, err := Regex(p)
		require.ErrorIs(t, err, ErrGrammar, p)
	}
	g, err = Choice("positive", "negative", "neutral", "pos")
	require.NoError(t, err)
	for s, want := range map[string]bool{"positive": true, "pos": true, "neutral": true, "ne": false, "positivex": false} {
		require.Equal(t, want, matches(t, g, s), s)
	}
	_, err = Choice()
	require.ErrorIs(t, err, ErrGrammar)
}

func TestToolCalls(t *testing.T) {
	tools := []model.ToolDef{
		{Name: "price", Parameters: json.RawMessage(`{"type":"object","properties":{"item":{"enum":["tea","pen"]}},"required":["item"]}`)},
		{Name: "noop"},
	}
	closed := SchemaOptions{Closed: true}
	free, err := ToolCalls(tools, Hermes, false, true, closed)
	require.NoError(t, err)
	must, err := ToolCalls(tools, Hermes, true, false, closed)
	require.NoError(t, err)
	const call = "<tool_call>\n{\"name\": \"price\", \"arguments\": {\"item\": \"tea\"}}\n</tool_call>"
	for s, want := range map[string][2]bool{
		"It is 3 <tool, <tool_cal": {true, false},
		call:                       {true, true},
		"Let me see.\n" + call:     {true, false},
		"<<tool_call>{\"name\":\"noop\",\"arguments\":{}}</tool_call>": {true, false},
		call + "\n" + call:                         {true, false},
		call + " and":                              {false, false},
		"<tool_call>":                              {false, false},
		strings.ReplaceAll(call, "tea", "gin"):     {false, false},
		strings.ReplaceAll(call, "price", "prize"): {false, false},
		"<tool_call>\n{\"name\": \"noop\", \"arguments\": {\"x\":1}}\n</tool_call>": {false, false},
	} {
		require.Equal(t, want[0], matches(t, free, s), s)
		require.Equal(t, want[1], matches(t, must, s), s)
	}
	list, err := ToolCalls(tools, Mistral, true, true, closed)
	require.NoError(t, err)
	require.True(t, matches(t, list, `[TOOL_CALLS][{"name": "noop", "arguments": {}}, {"name":"price","arguments":{"item":"pen"}}]`))
	require.False(t, matches(t, list, `[TOOL_CALLS][]`))
	_, err = ToolCalls([]model.ToolDef{{Name: "bad", Parameters: json.RawMessage(`{"not":{}}`)}}, Hermes, true, true, closed)
	require.ErrorContains(t, err, `tool bad: grammar: schema: #: keyword "not"`)
	_, err = ToolCalls(nil, Hermes, true, true, closed)
	require.ErrorIs(t, err, ErrGrammar)
}

// The mask is exactly the tokens whose bytes the automaton takes, whatever way
// of computing it is taken: each is fed to a fresh simulation here.
func TestMaskIsExact(t *testing.T) {
	vocab := testVocabulary(t)
	var grammars []*Grammar
	for _, c := range schemaCases {
		g, err := Schema([]byte(c.schema), SchemaOptions{})
		require.NoError(t, err)
		grammars = append(grammars, g)
	}
	for _, s := range []string{`{"type":"string","minLength":30,"maxLength":70}`, `{"type":"array","minItems":20,"items":{"type":"string","maxLength":40}}`} {
		g, err := Schema([]byte(s), SchemaOptions{})
		require.NoError(t, err)
		grammars = append(grammars, g)
	}
	g, err := ToolCalls([]model.ToolDef{{Name: "tool"}}, Hermes, false, true, SchemaOptions{})
	require.NoError(t, err)
	grammars = append(grammars, g)
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		g := grammars[r.IntN(len(grammars))]
		m, err := NewProgram(g, vocab).Start()
		require.NoError(rt, err)
		text := ""
		for range 40 {
			got := vocab.allowed(m)
			plain := newMachine(g)
			at, err := plain.start()
			require.NoError(rt, err)
			for _, b := range []byte(text) {
				at, err = plain.step(at, b)
				require.NoError(rt, err)
			}
			var want []int32
			for id, bytes := range vocab.bytes {
				to, err := (&Matcher{m: plain}).feed(at, bytes)
				require.NoError(rt, err)
				if len(bytes) > 0 && to != dead || len(bytes) == 0 && plain.sets[at].done && int32(id) == vocab.stop[0] {
					want = append(want, int32(id))
				}
			}
			require.Equal(rt, want, got, "after %q", text)
			id := got[r.IntN(len(got))]
			require.NoError(rt, m.Accept(id))
			if m.Ended() {
				return
			}
			text += string(vocab.bytes[id])
		}
	})
}

func TestMatcherRefuses(t *testing.T) {
	vocab := testVocabulary(t)
	g, err := Choice("ab")
	require.NoError(t, err)
	m, err := NewProgram(g, vocab).Start()
	require.NoError(t, err)
	require.ErrorContains(t, m.Accept('b'), "not allowed")
	require.ErrorContains(t, m.Accept(vocab.stop[0]), "incomplete")
	require.ErrorContains(t, m.Accept(-1), "cannot be written")
	require.NoError(t, m.Accept('a'), "an error leaves it where it was")
	require.NoError(t, m.Accept('b'))
	require.True(t, m.Complete())
	require.Equal(t, vocab.stop, vocab.allowed(m))
	require.NoError(t, m.Accept(vocab.stop[0]))
	require.True(t, m.Ended())
	require.Empty(t, vocab.allowed(m))
	require.Error(t, m.Accept('a'))
	_, err = newVocabulary([][]byte{{1}}, nil)
	require.ErrorContains(t, err, "no stop token")
}

// A long text keeps its memory: the machine is begun anew when it has grown.
func TestLongTextStaysSmall(t *testing.T) {
	vocab := testVocabulary(t)
	g, err := Schema([]byte(`{"type":"array","items":{"type":"string","maxLength":9}}`), SchemaOptions{Compact: true})
	require.NoError(t, err)
	m, err := NewProgram(g, vocab).Start()
	require.NoError(t, err)
	feed := func(s string) {
		for _, b := range []byte(s) {
			require.NoError(t, m.Accept(int32(b)))
		}
	}
	feed(`["`)
	for range 3000 {
		feed(`abc","`)
		vocab.allowed(m)
	}
	feed(`"]`)
	require.True(t, m.Complete())
	require.Less(t, len(m.m.nodes), maxNodes/8)
}

// Grammars that are deeply nested or read many ways end in errors or empty
// masks, not in hours or memory.
func TestHostileGrammars(t *testing.T) {
	vocab := testVocabulary(t)
	g, err := EBNF("root ::= \"[\" root \"]\" | \"x\"")
	require.NoError(t, err)
	ok, err := g.Matches(strings.Repeat("[", 100000))
	require.NoError(t, err)
	require.False(t, ok, "deeper than the limit")

	g, err = EBNF("root ::= a*\na ::= \"a\" a a | \"a\" a | \"a\" | \"aa\" a? a?")
	require.NoError(t, err)
	_, err = g.Matches(strings.Repeat("a", 3000))
	if err != nil {
		require.ErrorIs(t, err, errAmbiguous)
	}
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "r%d ::= \"a\"{1,1000000} r%d?\n", i, (i+1)%3000)
	}
	g, err = EBNF("root ::= r0\n" + many.String())
	require.NoError(t, err)
	m, err := NewProgram(g, vocab).Start()
	require.NoError(t, err)
	require.NotEmpty(t, vocab.allowed(m))
	_, err = EBNF("root ::= " + strings.Repeat("[^a]", 50000))
	require.ErrorContains(t, err, "states")
}

func FuzzEBNF(f *testing.F) {
	for _, s := range []string{"root ::= \"a\" | [b-z]+ x{2,}\nx ::= \"\\u00e9\" # c", "root ::= (\"a\"? \".\")*", "root ::= [^\\]]"} {
		f.Add(s, "a.")
	}
	f.Fuzz(func(t *testing.T, source, text string) {
		g, err := EBNF(source)
		if err == nil && len(text) < 1000 {
			_, _ = g.Matches(text)
		}
	})
}

func FuzzRegex(f *testing.F) {
	f.Add(`^a+[^b]{2,3}(c|d)?$`, "aazz")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		g, err := Regex(pattern)
		if err == nil && len(text) < 1000 {
			_, _ = g.Matches(text)
		}
	})
}
