package data

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
)

// Bad rows: each with its place and what is wrong with it.
func TestBadRows(t *testing.T) {
	good := `{"prompt":"p","chosen":"c","rejected":"r"}`
	pair := func(chosen string) string { return `{"prompt":"p","chosen":` + chosen + `,"rejected":"r"}` }
	for name, c := range map[string]struct {
		want Want
		good string
		row  string
		err  string
	}{
		"no json":         {WantPairs, good, `{"prompt"`, "not a JSON object"},
		"null":            {WantPairs, good, `null`, "not a JSON object but null"},
		"list":            {WantPairs, good, `[1]`, "not a JSON object"},
		"missing":         {WantPairs, good, `{"prompt":"p","chosen":"c"}`, `column "rejected" is missing or null`},
		"number":          {WantPairs, good, pair(`3`), `column "chosen" is 3; want text or a list of messages`},
		"empty":           {WantPairs, good, pair(`""`), `column "chosen" is empty`},
		"equal":           {WantPairs, good, pair(`"r"`), "chosen and rejected are equal"},
		"two kinds":       {WantPairs, good, pair(`[{"role":"assistant","content":"x"}]`), "are of two kinds"},
		"role":            {WantPairs, good, pair(`[{"role":"bot","content":"x"}]`), `message 0: role "bot"`},
		"image":           {WantPairs, good, pair(`[{"role":"assistant","content":[{"type":"image"}]}]`), "only text can be trained on"},
		"calls of a user": {WantPairs, good, pair(`[{"role":"user","tool_calls":[{}]}]`), "only the assistant calls tools"},
		"arguments":       {WantPairs, good, pair(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1,"}}]}]`), "JSON object"},
		"weight":          {WantPairs, good, strings.Replace(good, "{", `{"weight":0,`, 1), `column "weight" is 0`},
		"margin":          {WantPairs, good, strings.Replace(good, "{", `{"margin":"x",`, 1), `column "margin"`},
		"tools":           {WantPairs, good, strings.Replace(good, "{", `{"tools":[{}],`, 1), `column "tools"`},
		"label":           {WantVerdicts, `{"prompt":"p","completion":"c","label":true}`, `{"prompt":"p","completion":"c","label":"yes"}`, `column "label" is "yes"`},
		"labels":          {WantVerdicts, `{"prompt":"p","completions":["c"],"labels":[true]}`, `{"prompt":"p","completions":["c"],"labels":[]}`, "1 and 0 entries"},
		"user last": {WantDemonstrations, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x"}]}`,
			`{"messages":[{"role":"assistant","content":"x"},{"role":"user","content":"q"}]}`, `the last message is of role "user"`},
		"no assistant weight": {WantDemonstrations, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x"}]}`,
			`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x","weight":0}]}`, "no token to train"},
		"rewriting template": {WantDemonstrations, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x"}]}`,
			`{"messages":[{"role":"user","content":"rewritten"},{"role":"assistant","content":"x"}]}`, "rewrites history"},
		"no common beginning": {WantPairs, `{"chosen":"a b","rejected":"a c"}`, `{"chosen":"x","rejected":"y"}`, "no common beginning"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, "d.jsonl", c.good, "", c.row, c.good)
			_, rep, err := load(t, options(c.want), path)
			var bad *BadRowsError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, 1, bad.Bad)
			require.Equal(t, 3, rep.Read)
			require.ErrorContains(t, err, path+":3: ")
			require.ErrorContains(t, err, c.err)

			opt := options(c.want)
			opt.BadRows = BadSkip
			var where []string
			opt.Skipped = func(w string, why error) { where = append(where, w) }
			set, rep, err := load(t, opt, path)
			require.NoError(t, err)
			require.Equal(t, 1, rep.Bad)
			require.Equal(t, []string{path + ":3"}, where)
			require.GreaterOrEqual(t, set.Len(), 2)
		})
	}
}

func TestManyBadRowsAreCounted(t *testing.T) {
	lines := []string{`{"text":"a"}`}
	for range 30 {
		lines = append(lines, `{"text":""}`)
	}
	_, _, err := load(t, options(WantDemonstrations), file(t, "d.jsonl", lines...))
	require.ErrorContains(t, err, "30 of 31 rows cannot be used")
	require.ErrorContains(t, err, "and 20 more")
	opt := options(WantDemonstrations)
	opt.BadRows = BadSkip
	_, _, err = load(t, opt, file(t, "d.jsonl", lines[1:]...)) // nothing left is no success
	require.ErrorContains(t, err, "30 of 30 rows")
}

func TestEmptyAndUnreadable(t *testing.T) {
	opt := options(WantDemonstrations)
	_, _, err := load(t, opt, file(t, "d.jsonl", ""))
	require.ErrorIs(t, err, ErrEmpty)
	_, _, err = load(t, opt)
	require.ErrorContains(t, err, "no files")
	_, _, err = load(t, opt, filepath.Join(t.TempDir(), "none.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = load(t, opt, file(t, "d.csv", "a"))
	require.ErrorContains(t, err, "no known kind of file")
	_, _, err = load(t, opt, file(t, "d.jsonl.gz", "not gzip at all"))
	require.Error(t, err)
	_, _, err = load(t, opt, file(t, "d.parquet", "not parquet at all"))
	require.Error(t, err)
	_, _, err = load(t, opt, filepath.Join(t.TempDir(), "*.jsonl"))
	require.ErrorContains(t, err, "matches no file")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err = Load(ctx, []Source{{Path: file(t, "d.jsonl", `{"text":"a"}`)}}, toyChat{}, opt)
	require.ErrorIs(t, err, context.Canceled)
	opt.BadRows, opt.Overlong, opt.Format, opt.Order.Mix, opt.MaxLength = "x", "x", "x", "x", -1
	_, _, err = load(t, opt, "a.jsonl")
	for _, field := range []string{"bad_rows", "overlong", "format", "mix", "max_length"} {
		require.ErrorContains(t, err, field)
	}
}

// The same rows from every kind of file give the same set.
func TestCompressedAndParquetFilesGiveTheSameRows(t *testing.T) {
	type message struct {
		Role    string `parquet:"role"`
		Content string `parquet:"content,optional"`
	}
	type row struct {
		Prompt   []message `parquet:"prompt,list"`
		Chosen   []message `parquet:"chosen,list"`
		Rejected []message `parquet:"rejected,list"`
		Weight   float64   `parquet:"weight"`
		Note     *string   `parquet:"note,optional"`
	}
	var lines []string
	var rows []row
	for i := range 20 {
		q, c, r := fmt.Sprintf("q%d", i), fmt.Sprintf("c%d é", i), fmt.Sprintf("r%d", i)
		lines = append(lines, fmt.Sprintf(`{"prompt":[{"role":"user","content":%q}],"chosen":[{"role":"assistant","content":%q}],"rejected":[{"role":"assistant","content":%q}],"weight":2}`, q, c, r))
		rows = append(rows, row{[]message{{"user", q}}, []message{{"assistant", c}}, []message{{"assistant", r}}, 2, nil})
	}
	want, _, err := load(t, options(WantPairs), file(t, "d.jsonl", lines...))
	require.NoError(t, err)
	require.Len(t, want.Rows(), 20)
	require.Equal(t, 2., want.Rows()[3].Weight)

	body := []byte(strings.Join(lines, "\n") + "\n")
	var gz, zs, pq bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, err = g.Write(body)
	require.NoError(t, err)
	require.NoError(t, g.Close())
	z, err := zstd.NewWriter(&zs)
	require.NoError(t, err)
	_, err = z.Write(body)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	w := parquet.NewGenericWriter[row](&pq, parquet.Compression(&parquet.Zstd))
	_, err = w.Write(rows)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for name, content := range map[string][]byte{"d.ndjson.gz": gz.Bytes(), "d.jsonl.zst": zs.Bytes(), "d.parquet": pq.Bytes()} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		got, _, err := load(t, options(WantPairs), path)
		require.NoError(t, err, name)
		require.Equal(t, want.Digest(), got.Digest(), name)
		require.Equal(t, path+":4", got.Rows()[3].Where)
		// a file that was cut is an error, not a shorter set
		require.NoError(t, os.WriteFile(path, content[:len(content)/2], 0o600))
		_, _, err = load(t, options(WantPairs), path)
		require.Error(t, err, name)
	}
}

// Parquet as other writers shape it: plain repeated fields and texts as bytes.
func TestParquetShapes(t *testing.T) {
	type row struct {
		Prompt      []byte   `parquet:"prompt"`
		Completions []string `parquet:"completions"`
		Labels      []bool   `parquet:"labels,list"`
	}
	path := filepath.Join(t.TempDir(), "d.parquet")
	require.NoError(t, parquet.WriteFile(path, []row{{[]byte("p"), []string{"a", "b"}, []bool{true, false}}}))
	set, _, err := load(t, options(WantVerdicts), path)
	require.NoError(t, err)
	require.Len(t, set.Rows(), 2)
	require.True(t, set.Rows()[0].Label)
	require.Equal(t, "^pa\n", text(set.Rows()[1].Prompt))
}

func TestLengths(t *testing.T) {
	path := file(t, "d.jsonl", `{"prompt":"ppp","completion":"cc"}`, `{"prompt":"p","completion":"cccccccc"}`, `{"prompt":"pppppppppp","completion":"c"}`)
	opt := options(WantDemonstrations)
	opt.MaxLength = 8
	set, rep, err := load(t, opt, path)
	require.NoError(t, err)
	require.Equal(t, 1, set.Len())
	require.Equal(t, 2, rep.TooLong)
	opt.Overlong = LongTruncate
	set, rep, err = load(t, opt, path)
	require.NoError(t, err)
	require.Equal(t, 2, set.Len())
	require.Equal(t, 1, rep.Truncated)
	require.Equal(t, 1, rep.TooLong, "a prompt is never cut")
	require.Equal(t, "cccccc", text(set.Rows()[1].Chosen.Tokens))
	opt.Overlong = LongFail
	_, _, err = load(t, opt, path)
	require.ErrorContains(t, err, "too long: it has 11 tokens, max_length is 8")
	opt = options(WantDemonstrations)
	opt.MaxPrompt = 2
	set, rep, err = load(t, opt, path)
	require.NoError(t, err)
	require.Equal(t, 1, set.Len())
	require.Equal(t, Counts{Rows: 1, Tokens: 11, Trained: 9, Longest: 11}, set.Counts())
	require.Equal(t, 2, rep.TooLong)
	// cases/training.tsv dpo: truncation never removes the prompt
	opt = options(WantPairs)
	opt.MaxLength, opt.Overlong = 4, LongTruncate
	set, _, err = load(t, opt, file(t, "d.jsonl", `{"prompt":"ab","chosen":"cde","rejected":"x"}`))
	require.NoError(t, err)
	require.Equal(t, "^ab", text(set.Rows()[0].Prompt))
	require.Equal(t, "c", text(set.Rows()[0].Chosen.Tokens))
	require.Equal(t, "x", text(set.Rows()[0].Rejected.Tokens))
}

func FuzzRows(f *testing.F) {
	for _, s := range []string{`{"prompt":"p","chosen":"c","rejected":"r"}`, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"x","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tools":"[]"}`,
		`{"prompt":"p","completions":["a"],"labels":[1]}`, `{"text":"\ud800"}`, `{"chosen":[],"rejected":{}}`, "{\"text\":\"a\"}\n{", "\x00"} {
		f.Add(s)
	}
	path := filepath.Join(f.TempDir(), "d.jsonl")
	f.Fuzz(func(t *testing.T, s string) {
		require.NoError(t, os.WriteFile(path, []byte(s), 0o600))
		for _, want := range []Want{WantDemonstrations, WantPairs, WantVerdicts, WantPrompts} {
			opt := options(want)
			opt.BadRows = BadSkip
			set, rep, err := load(t, opt, path)
			if err != nil {
				continue
			}
			require.Positive(t, set.Len())
			require.LessOrEqual(t, rep.Bad, rep.Read)
			for _, e := range set.Rows() {
				require.NotEmpty(t, e.Prompt)
				require.Equal(t, want == WantPairs, e.Pair())
			}
		}
	})
}
