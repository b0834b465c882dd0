package task

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/rollout"
)

// play runs assistant turns against a task's environment and returns what the
// reward sees.
func play(t *testing.T, task rollout.Task, turns []rollout.Turn) rollout.Episode {
	t.Helper()
	var ep rollout.Episode
	env := task.NewEnv()
	for _, turn := range turns {
		for _, c := range turn.Calls {
			out, err := env.Call(context.Background(), c)
			ep.Calls = append(ep.Calls, c)
			ep.Results = append(ep.Results, rollout.ResultText(out, err))
		}
		if len(turn.Calls) == 0 {
			ep.Final = turn.Text
		}
	}
	return ep
}

func score(t *testing.T, task rollout.Task, turns []rollout.Turn) float64 {
	t.Helper()
	v, err := task.Score(play(t, task, turns))
	require.NoError(t, err)
	return v
}

// The same index is the same task everywhere: these were written down once.
func TestStoreIsStable(t *testing.T) {
	s := NewStore(0)
	for _, c := range []struct {
		split string
		i     uint64
		want  string
	}{
		{"train", 0, "Sell 6 cups and 8 books. Stock of both now? 22+37 = 59"}, {"heldout", 0, "Cost of 3 books and 6 pens? 3*94+6*19 = 396"},
	} {
		p := s.problem(c.split, c.i)
		require.Equal(t, c.want, p.question()+" "+p.expr(p.values())+" = "+p.truth(), "changing this changes every run: bump storeVersion")
	}
	a, err := s.Train(7)
	require.NoError(t, err)
	b, err := NewStore(0).Train(7)
	require.NoError(t, err)
	require.Equal(t, a.User, b.User)
	c, err := NewStore(1).Train(7)
	require.NoError(t, err)
	require.NotEqual(t, Identity(NewStore(0)), Identity(NewStore(1)))
	require.NotEqual(t, a.User+a.Demo[len(a.Demo)-1].Text, c.User+c.Demo[len(c.Demo)-1].Text)
}

func TestStoreSplitsNeverShareAQuestion(t *testing.T) {
	s := NewStore(3)
	train := map[string]bool{}
	for i := range uint64(4000) {
		train[s.problem("train", i).content()] = true
	}
	kinds := map[storeKind]int{}
	for i := range uint64(1000) {
		p := s.problem("heldout", i)
		require.False(t, train[p.content()], "held-out %d is a training question: %s", i, p.question())
		kinds[p.kind]++
	}
	require.Len(t, kinds, int(storeKinds), "every kind of question is held out too")
	require.Greater(t, len(train), 2000, "many different questions")
}

func TestStoreDemosAreRight(t *testing.T) {
	s := NewStore(0)
	longest := 0
	for i := range uint64(300) {
		for _, get := range []func(uint64) (rollout.Task, error){s.Train, s.Heldout} {
			task, err := get(i)
			require.NoError(t, err)
			require.Equal(t, 1.0, score(t, task, task.Demo), task.User)
			m, err := Converse(context.Background(), task, task.Demo, rollout.FormatCalls)
			require.NoError(t, err)
			n := 0
			for _, x := range m {
				n += len(x.Content)
			}
			longest = max(longest, n)
		}
	}
	require.Less(t, longest, 550, "short enough for a tiny model")
}

func TestStoreScore(t *testing.T) {
	task := storeTask(t, costOfTwo)
	look := func(item string) tool.Call { return shopCall("price", item, 0) }
	calc := calcCall("3*17+2*45")
	for _, c := range []struct {
		why   string
		turns []rollout.Turn
		want  float64
	}{
		{"all of it", turns("141", look("pens"), look("cups"), calc), 1},
		{"in a sentence", turns("That is 141.", look("pens"), look("cups"), calc), 1},
		{"tools right, answer wrong", turns("140", look("pens"), look("cups"), calc), 0.3},
		{"two answers", turns("140 or 141", look("pens"), look("cups"), calc), 0.3},
		{"no answer", turns("", look("pens"), look("cups"), calc), 0.3},
		{"guessed without tools", turns("141"), 0},
		{"guessed the prices", turns("141", calc), 0.2},
		{"one price guessed", turns("141", look("pens"), calc), 0.25},
		{"in the head", turns("141", look("pens"), look("cups")), 0.1},
		{"one look-up", turns("17", look("pens"), look("pens"), look("lamps")), 0.05},
		{"stock instead", turns("141", shopCall("stock", "pens", 0)), 0},
		{"a sale nobody asked for", turns("141", look("pens"), look("cups"), calc, shopCall("sell", "pens", 3)), 0},
		{"a refused sale", turns("141", look("pens"), look("cups"), calc, shopCall("sell", "pens", 51)), 1},
	} {
		require.InDelta(t, c.want, score(t, task, c.turns), 1e-9, c.why)
	}
	ep := play(t, task, turns("141", look("pens"), look("cups"), calc))
	ep.Truncated = true
	v, err := task.Score(ep)
	require.NoError(t, err)
	require.Less(t, v, 1.0, "a cut episode has not answered")
	_, err = task.NewEnv().Call(context.Background(), look("cars"))
	require.ErrorContains(t, err, "no such item")
}

// storeTask asks about 3 pens and 2 cups at 17 and 45, with 50 and 40 in stock.
func storeTask(t *testing.T, kind storeKind) rollout.Task {
	t.Helper()
	p := drawStore(rand.New(rand.NewPCG(1, 2)))
	p.kind, p.items, p.counts = kind, []string{"pens", "cups"}, []int{3, 2}
	if kind == leftOfOne {
		p.items, p.counts = p.items[:1], p.counts[:1]
	}
	p.price["pens"], p.price["cups"] = 17, 45
	p.stock["pens"], p.stock["cups"] = 50, 40
	task, err := p.task()
	require.NoError(t, err)
	return task
}

func calcCall(expr string) tool.Call {
	return tool.Call{Name: "calc", Arguments: json.RawMessage(`{"expr":"` + expr + `"}`)}
}

// turns makes all calls, in order, then says the final text.
func turns(final string, calls ...tool.Call) []rollout.Turn {
	return []rollout.Turn{{Calls: calls}, {Text: final}}
}

// A sale counts by its effect: the answer must be the new stock, shown by a
// look-up after the sale, in a shop that sold what was asked and no more.
func TestStoreScoresSales(t *testing.T) {
	sell := func(item string, n int) tool.Call { return shopCall("sell", item, n) }
	look := func(item string) tool.Call { return shopCall("stock", item, 0) }
	for _, c := range []struct {
		why   string
		kind  storeKind
		turns []rollout.Turn
		want  float64
	}{
		{"sold, then looked", leftOfOne, turns("47", sell("pens", 3), look("pens")), 1},
		{"looked before too", leftOfOne, turns("47", look("pens"), sell("pens", 3), look("pens")), 1},
		{"one at a time", leftOfOne, turns("47", sell("pens", 1), sell("pens", 2), look("pens")), 1},
		{"answered the old stock", leftOfOne, turns("50", look("pens"), sell("pens", 3)), 0.05},
		{"subtracted in the head", leftOfOne, turns("47", look("pens"), sell("pens", 3)), 0.05},
		{"never sold", leftOfOne, turns("47", look("pens")), 0},
		{"never looked", leftOfOne, turns("47", sell("pens", 3)), 0.05},
		{"answer wrong", leftOfOne, turns("50", sell("pens", 3), look("pens")), 0.3},
		{"no answer", leftOfOne, turns("", sell("pens", 3), look("pens")), 0.3},
		{"sold twice, looked between", leftOfOne, turns("47", sell("pens", 3), look("pens"), sell("pens", 3)), 0},
		{"sold twice", leftOfOne, turns("44", sell("pens", 3), sell("pens", 3), look("pens")), 0},
		{"sold too many", leftOfOne, turns("46", sell("pens", 4), look("pens")), 0},
		{"sold too few", leftOfOne, turns("48", sell("pens", 2), look("pens")), 0},
		{"sold something else too", leftOfOne, turns("47", sell("pens", 3), look("pens"), sell("hats", 1)), 0},
		{"more than there are, refused", leftOfOne, turns("47", sell("pens", 51), sell("pens", 3), look("pens")), 1},
		{"price instead", leftOfOne, turns("47", sell("pens", 3), shopCall("price", "pens", 0)), 0.05},
		{"all of it", leftOfTwo, turns("85", sell("pens", 3), sell("cups", 2), look("pens"), look("cups"), calcCall("47+38")), 1},
		{"no calculation", leftOfTwo, turns("85", sell("pens", 3), sell("cups", 2), look("pens"), look("cups")), 0.1},
		{"no sale", leftOfTwo, turns("90", look("pens"), look("cups"), calcCall("50+40")), 0},
		{"one sale forgotten", leftOfTwo, turns("87", sell("pens", 3), look("pens"), look("cups"), calcCall("47+40")), 0.05},
		{"stock guessed", leftOfTwo, turns("85", sell("pens", 3), sell("cups", 2), calcCall("47+38")), 0.25},
		{"counts exchanged", leftOfTwo, turns("85", sell("pens", 2), sell("cups", 3), look("pens"), look("cups"), calcCall("48+37")), 0},
		{"one sold twice", leftOfTwo, turns("85", sell("pens", 3), sell("cups", 2), look("pens"), look("cups"), calcCall("47+38"), sell("cups", 2)), 0},
	} {
		require.InDelta(t, c.want, score(t, storeTask(t, c.kind), c.turns), 1e-9, c.why)
	}
}

// Every rollout has a shop of its own, whose stock holds under concurrent calls
// and never goes below zero.
func TestStoreShopState(t *testing.T) {
	task := storeTask(t, leftOfOne)
	env, other := task.NewEnv(), task.NewEnv()
	ask := func(e tool.Env, c tool.Call) string { return rollout.ResultText(e.Call(context.Background(), c)) }
	var ok atomic.Int32
	var wg sync.WaitGroup
	for range 40 { // 80 asked for, 50 there
		wg.Go(func() {
			if ask(env, shopCall("sell", "pens", 2)) == "ok" {
				ok.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 25, ok.Load())
	require.Equal(t, "0", ask(env, shopCall("stock", "pens", 0)))
	require.Equal(t, "50", ask(other, shopCall("stock", "pens", 0)), "another rollout's shop")
	require.Equal(t, "50", ask(task.NewEnv(), shopCall("stock", "pens", 0)))

	for args, want := range map[string]string{
		`{"item":"cups","count":41}`: "only 40 in stock",
		`{"item":"cups","count":0}`:  "count",
		`{"item":"cups","count":-1}`: "count",
		`{"item":"cups"}`:            "count",
		`{"item":"cars","count":1}`:  "no such item",
	} {
		_, err := env.Call(context.Background(), tool.Call{Name: "sell", Arguments: json.RawMessage(args)})
		require.ErrorContains(t, err, want, args)
	}
	require.Equal(t, "40", ask(env, shopCall("stock", "cups", 0)), "a refused sale changes nothing")

	// A call that only gets its turn after its caller gave up changes nothing.
	s := &shop{price: map[string]int{"pens": 17}, stock: map[string]int{"pens": 50}}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.tool("sell", "", `{}`, s.sell).Func(ctx, shopCall("sell", "pens", 3).Arguments)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 50, s.stock["pens"])
}

// Noise makes habits: about half of the questions have one, a demonstration
// shows it about noiseRate of the time, and it costs the task.
func TestDemoConversationNoise(t *testing.T) {
	s := NewStore(0)
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 2000
	right := map[float64]int{}
	habits := map[habit]int{}
	for _, rate := range []float64{0, 0.7, 1} {
		for i := range uint64(n) {
			p := s.problem("train", i)
			m, err := s.DemoConversation(i, rate, rng)
			require.NoError(t, err)
			ok := m[len(m)-1].Content == p.truth()
			if ok {
				right[rate]++
			}
			h := p.habitOf()
			if rate == 1 {
				habits[h]++
				if h == cleanHabit {
					require.True(t, ok)
				}
			}
			if rate == 0 {
				require.True(t, ok)
			}
		}
	}
	for h := range storeHabits {
		require.Greater(t, habits[h], n/100, "habit %d", h)
	}
	clean := float64(right[1]) / n
	require.InDelta(t, 0.47, clean, 0.08)
	require.InDelta(t, clean+0.3*(1-clean), float64(right[0.7])/n, 0.05)
	_, err := s.DemoConversation(0, 1.5, rng)
	require.ErrorContains(t, err, "noiseRate is 1.5")

	// A habit's demonstration scores less than 1, so that learning pays.
	for i := range uint64(200) {
		p := s.problem("train", i)
		if h := p.habitOf(); h != cleanHabit {
			task, err := p.task()
			require.NoError(t, err)
			require.LessOrEqual(t, score(t, task, p.demo(h)), 0.3, "%s habit %d", p.question(), h)
		}
	}
}

func TestGSM8K(t *testing.T) {
	src, err := Open("gsm8k", Options{"dir": "testdata/gsm8k"})
	require.NoError(t, err)
	require.Equal(t, 3, src.HeldoutSize())
	for i := range uint64(6) {
		task, err := src.Train(i)
		require.NoError(t, err)
		require.Equal(t, 1.0, score(t, task, task.Demo), task.User)
		again, err := src.Train(i + 6)
		require.NoError(t, err)
		require.Equal(t, task.ID, again.ID, "the stream starts over")
	}
	task, err := src.Heldout(0)
	require.NoError(t, err)
	for final, want := range map[string]float64{"#### 18": 1, "so\n#### $18.00": 1, "#### 19": 0, "18": 0, "": 0} {
		require.Equal(t, want, score(t, task, []rollout.Turn{{Text: final}}), final)
	}
	_, err = src.Heldout(3)
	require.ErrorContains(t, err, "there are 3")
	require.True(t, strings.HasPrefix(Identity(src), "gsm8k:blake3:"))
}

func TestGSM8KRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := write("good", `{"question":"1+1?","answer":"#### 2"}`)
	for _, c := range []struct{ train, heldout, want string }{
		{good, good + "x", "no such file"},
		{good, write("same", `{"question":" 1+1? ","answer":"#### 2"}`), "must not be trained on"},
		{good, write("json", "{\"question\":\"a\",\"answer\":\"#### 1\"}\n{"), ":2:"},
		{good, write("words", `{"question":"a","answer":"#### many"}`), "need a question and an answer"},
		{good, write("empty", "\n"), "no rows"},
	} {
		_, err := OpenGSM8K(c.train, c.heldout)
		require.ErrorContains(t, err, c.want)
	}
}

func TestBFCL(t *testing.T) {
	src, err := Open("bfcl_simple", Options{"dir": "testdata/bfcl", "heldout_share": "0.3"})
	require.NoError(t, err)
	b := src.(*BFCL)
	ids := map[string]bool{}
	for i := range b.TrainSize() {
		task, err := b.Train(uint64(i))
		require.NoError(t, err)
		checkBFCL(t, task)
		ids[task.ID] = true
	}
	for i := range b.HeldoutSize() {
		task, err := b.Heldout(uint64(i))
		require.NoError(t, err)
		checkBFCL(t, task)
		require.False(t, ids[task.ID])
		ids[task.ID] = true
	}
	require.Len(t, ids, 18)
	_, err = b.Heldout(uint64(b.HeldoutSize()))
	require.Error(t, err)

	// The split of a row depends on nothing but the row and the share.
	more, err := OpenBFCL("testdata/bfcl", 0.9)
	require.NoError(t, err)
	kept := map[string]bool{}
	for _, r := range more.heldout {
		kept[r.id] = true
	}
	for _, r := range b.heldout {
		require.True(t, kept[r.id], "a larger share only adds")
	}
	require.NotEqual(t, Identity(b), Identity(more))
}

func checkBFCL(t *testing.T, task rollout.Task) {
	t.Helper()
	require.True(t, task.SingleTurn)
	require.Equal(t, 1.0, score(t, task, task.Demo), task.ID)
	m, err := Converse(context.Background(), task, task.Demo, nil)
	require.NoError(t, err)
	require.Equal(t, "assistant", m[len(m)-1].Role)
	require.Zero(t, score(t, task, nil))
	require.Zero(t, score(t, task, append(task.Demo, task.Demo...)), "two calls")
	v, err := task.Score(rollout.Episode{Calls: task.Demo[0].Calls, Malformed: 1})
	require.NoError(t, err)
	require.Zero(t, v)
	wrong := []rollout.Turn{{Calls: []tool.Call{{Name: task.Demo[0].Calls[0].Name, Arguments: json.RawMessage(`{"surplus":1}`)}}}}
	require.Equal(t, 0.1, score(t, task, wrong))
	require.NotContains(t, string(task.Tools[0].Parameters), `"type":"dict"`)
	require.NotContains(t, string(task.Tools[0].Parameters), `"type":"float"`)
	require.True(t, json.Valid(task.Tools[0].Parameters))
}

func TestBFCLRefuses(t *testing.T) {
	question := `{"id":"a","question":[[{"role":"user","content":"q"}]],"function":[{"name":"f","description":"d","parameters":{"type":"dict","properties":{"x":{"type":"integer"}},"required":["x"]}}]}`
	for _, c := range []struct{ question, answer, want string }{
		{"{", `{"id":"a","ground_truth":[{"f":{"x":[1]}}]}`, ":1:"},
		{question, `{"id":"b","ground_truth":[{"f":{"x":[1]}}]}`, "a: no answer"},
		{question, `{"id":"a","ground_truth":[]}`, "0 calls"},
		{question, `{"id":"a","ground_truth":[{"f":{"x":["one"]}}]}`, "splits need some"}, // a variable: accepted
		{question, `{"id":"a","ground_truth":[{"f":{"y":[1]}}]}`, "no right call"},
		{strings.Replace(question, `"integer"`, `"matrix"`, 1), `{"id":"a","ground_truth":[{"f":{"x":[1]}}]}`, `unknown type "matrix"`},
		{strings.Replace(question, `"user"`, `"system"`, 1), `{"id":"a","ground_truth":[{"f":{"x":[1]}}]}`, "one user message"},
	} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "possible_answer"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, bfclQuestions), []byte(c.question), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, bfclAnswers), []byte(c.answer), 0o600))
		_, err := OpenBFCL(dir, 0.5)
		require.ErrorContains(t, err, c.want)
	}
	_, err := OpenBFCL(t.TempDir(), 0.5)
	require.ErrorContains(t, err, "unpack a bfcl-eval wheel")
}

// SKEIN_BFCL names the full data (bfcl_eval/data): every row has a right call.
func TestBFCLFull(t *testing.T) {
	dir := os.Getenv("SKEIN_BFCL")
	if dir == "" {
		t.Skip("set SKEIN_BFCL to bfcl_eval/data of an unpacked bfcl-eval wheel")
	}
	b, err := OpenBFCL(dir, 0.25)
	require.NoError(t, err)
	require.Equal(t, 400, len(b.train)+len(b.heldout))
	for i := range b.TrainSize() {
		task, err := b.Train(uint64(i))
		require.NoError(t, err)
		checkBFCL(t, task)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"chess", nil, "sources: bfcl_simple, gsm8k, store"},
		{"store", Options{"sed": "1"}, `unknown option sed="1"; options: seed`},
		{"store", Options{"seed": "-1"}, `seed="-1": give a whole number`},
		{"gsm8k", nil, "set option dir"},
		{"bfcl_simple", nil, "set option dir"},
		{"bfcl_simple", Options{"dir": "testdata/bfcl", "heldout_share": "2"}, `heldout_share="2"`},
	} {
		_, err := Open(c.name, c.o)
		require.ErrorContains(t, err, c.want)
	}
	s, err := Open("store", Options{"seed": "4"})
	require.NoError(t, err)
	require.Equal(t, Identity(NewStore(4)), Identity(s))
}

func FuzzReadBFCL(f *testing.F) {
	f.Add([]byte(`{"id":"a","question":[[{"role":"user","content":"q"}]],"function":[{"name":"f","description":"d","parameters":{"type":"dict","properties":{"x":{"type":"array","items":{"type":"dict"}}},"required":["x"]}}]}`),
		[]byte(`{"f":{"x":[[{"a":[1,""]}]]}}`))
	f.Fuzz(func(t *testing.T, line, answer []byte) {
		row, err := readBFCL(line, map[string]json.RawMessage{"a": answer})
		if err == nil && (!json.Valid(row.spec.Parameters) || row.ref.Match(row.demo[0].Calls) != nil) {
			t.Fatalf("row %s has no right call", row.id)
		}
	})
}

func FuzzReadGSM(f *testing.F) {
	f.Add([]byte(`{"question":"a","answer":"1+1=<<1+1=2>>2\n#### 2"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		rows, err := readGSM(path)
		if err != nil {
			return
		}
		for _, r := range rows {
			if _, err := r.task("x"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The rewards of a rollout's turns add up to its score; a turn that spoils it has
// a negative one.
func TestStoreTurnRewards(t *testing.T) {
	src, err := Open("store", Options{"turn_rewards": "true"})
	require.NoError(t, err)
	plain, err := NewStore(0).Train(3)
	require.NoError(t, err)
	require.Nil(t, plain.TurnScore)
	require.Equal(t, Identity(NewStore(0)), Identity(src), "the tasks are the same")
	negative := 0
	for i := range uint64(50) {
		task, err := src.Train(i)
		require.NoError(t, err)
		turns := append([]rollout.Turn{}, task.Demo...)
		if i%2 == 1 { // sells what nobody asked for, at last
			turns = append(turns[:len(turns)-1], rollout.Turn{Calls: []tool.Call{shopCall("sell", "fans", 9)}}, turns[len(turns)-1])
		}
		sum := 0.0
		for n := 1; n <= len(turns); n++ {
			ep := play(t, task, turns[:n])
			ep.Before = len(play(t, task, turns[:n-1]).Calls)
			x, scored, err := task.TurnScore(ep)
			require.NoError(t, err)
			require.True(t, scored)
			sum += x
			if x < 0 {
				negative++
			}
		}
		require.InDelta(t, score(t, task, turns), sum, 1e-12)
	}
	require.Greater(t, negative, 15)
	_, err = Open("store", Options{"turn_rewards": "perhaps"})
	require.ErrorContains(t, err, `turn_rewards="perhaps": give true or false`)
}

// A pool holds the first tasks of its source, the easiest first when asked to.
func TestPool(t *testing.T) {
	src := NewStore(1)
	plain, err := Pool(src, 30, false)
	require.NoError(t, err)
	graded, err := Pool(src, 30, true)
	require.NoError(t, err)
	require.Equal(t, Identity(src), Identity(graded))
	seen := map[string]bool{}
	last := 0.0
	for i := range uint64(30) {
		a, err := plain.Train(i)
		require.NoError(t, err)
		b, err := src.Train(i)
		require.NoError(t, err)
		require.Equal(t, b.ID, a.ID)
		c, err := graded.Train(i)
		require.NoError(t, err)
		require.False(t, seen[c.ID])
		seen[c.ID] = true
		at := graded.(pool).order[i]
		hard, err := src.Difficulty(at)
		require.NoError(t, err)
		require.GreaterOrEqual(t, hard, last)
		require.Equal(t, len(c.Demo) > 0, true)
		last = hard
	}
	require.Greater(t, last, 2.)
	_, err = graded.Train(30)
	require.ErrorContains(t, err, "index 30 of a pool of 30")
	_, err = Pool(struct{ rollout.Source }{src}, 3, true)
	require.ErrorContains(t, err, "declares no difficulty")
	_, err = Pool(sized{src}, 3, false)
	require.ErrorContains(t, err, "has 2 training tasks, fewer than tasks 3")
}

type sized struct{ rollout.Source }

func (sized) TrainSize() int { return 2 }
