package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// allowed is a constraint that allows the same tokens at every step.
type allowed struct {
	ids      map[int32]bool
	accepted []int32
	refuse   bool
	panicAt  string
}

func (a *allowed) Allow(mask []uint64) {
	if a.panicAt == "allow" {
		panic("grammar bug")
	}
	for i := range mask {
		if mask[i] != ^uint64(0) {
			panic("the mask is not all set")
		}
		for b := range 64 {
			if !a.ids[int32(i*64+b)] {
				mask[i] &^= 1 << b
			}
		}
	}
}

func (a *allowed) Accept(id int32) error {
	if a.panicAt == "accept" {
		panic("grammar bug")
	}
	if a.refuse {
		return errors.New("not in the grammar")
	}
	a.accepted = append(a.accepted, id)
	return nil
}

// naiveRow is the distribution of a row by definition: one step after another,
// each over the whole vocabulary, in float64.
func naiveRow(logits []float32, row *model.DecodeRow, history []int32) map[int32]float64 {
	s := row.Sampling
	z := make([]float64, len(logits))
	for i, v := range logits {
		z[i] = float64(v)
		id := int32(i)
		if slices.Contains(history, id) && s.RepetitionPenalty != 0 {
			if z[i] > 0 {
				z[i] /= s.RepetitionPenalty
			} else {
				z[i] *= s.RepetitionPenalty
			}
		}
		n := 0
		for _, h := range history[min(row.Prompt, len(history)):] {
			if h == id {
				n++
			}
		}
		if n > 0 {
			z[i] -= float64(n)*s.FrequencyPenalty + s.PresencePenalty
		}
		z[i] = float64(float32(z[i])) // the logits stay float32
		for _, b := range row.Bias {
			if b.ID == id {
				z[i] = float64(float32(z[i]) + b.Bias)
			}
		}
		if c, ok := row.Constraint.(*allowed); ok && !c.ids[id] {
			z[i] = math.Inf(-1)
		}
	}
	ids := make([]int, len(z))
	for i := range ids {
		ids[i] = i
	}
	sort.SliceStable(ids, func(a, b int) bool { return z[ids[a]] > z[ids[b]] })
	temperature := s.Temperature
	if temperature == 0 {
		temperature = 1
	}
	weight := func(i int) float64 { return math.Exp((z[i] - z[ids[0]]) / temperature) }
	share := func() (p map[int32]float64) {
		p, total := map[int32]float64{}, 0.0
		for _, i := range ids {
			total += weight(i)
		}
		for _, i := range ids {
			p[int32(i)] = weight(i) / total
		}
		return p
	}
	if s.Temperature == 0 {
		return map[int32]float64{int32(ids[0]): share()[int32(ids[0])]}
	}
	if s.TopK > 0 {
		ids = ids[:min(s.TopK, len(ids))]
	}
	if p, cum := share(), 0.0; s.TopP > 0 && s.TopP < 1 {
		for n, i := range ids {
			if cum += p[int32(i)]; cum >= s.TopP {
				ids = ids[:n+1]
				break
			}
		}
	}
	if p := share(); s.MinP > 0 {
		most := p[int32(ids[0])]
		ids = slices.DeleteFunc(ids, func(i int) bool { return p[int32(i)] < s.MinP*most })
	}
	return share()
}

func randomRow(t *rapid.T, r *rand.Rand, vocab int) *model.DecodeRow {
	pick := func(name string, of ...float64) float64 { return rapid.SampledFrom(of).Draw(t, name) }
	row := &model.DecodeRow{
		Sampling: model.Sampling{
			Temperature: pick("temperature", 0, 0.3, 1, 1.7), TopP: pick("top_p", 0, 0.3, 0.9, 1), MinP: pick("min_p", 0, 0, 0.031, 0.31),
			TopK:              rapid.SampledFrom([]int{0, 0, 1, 5, 40, 1000}).Draw(t, "top_k"),
			RepetitionPenalty: pick("repetition", 0, 1, 0.7, 1.3), FrequencyPenalty: pick("frequency", 0, 0.41, -0.23),
			PresencePenalty: pick("presence", 0, 0.57, -0.83), Seed: rapid.Uint64().Draw(t, "seed"),
		},
		Raw: rapid.Bool().Draw(t, "raw"), Top: rapid.SampledFrom([]int{0, 1, 5, 500}).Draw(t, "top"),
	}
	for range rapid.IntRange(1, 30).Draw(t, "history") {
		row.History = append(row.History, int32(r.IntN(vocab)))
	}
	row.Last = row.History[len(row.History)-1]
	row.Prompt = rapid.IntRange(0, len(row.History)).Draw(t, "prompt")
	for range rapid.SampledFrom([]int{0, 0, 1, 6}).Draw(t, "bias") {
		row.Bias = append(row.Bias, model.TokenBias{ID: int32(r.IntN(vocab)), Bias: float32(3 * r.NormFloat64())})
	}
	if rapid.Bool().Draw(t, "constrained") {
		c := &allowed{ids: map[int32]bool{int32(r.IntN(vocab)): true}}
		for i := range vocab {
			if r.IntN(3) == 0 {
				c.ids[int32(i)] = true
			}
		}
		row.Constraint = c
	}
	return row
}

// Every combination of everything a row can ask for, against the definition.
func TestDrawRowMatchesTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "data"), 1))
		logits := make([]float32, rapid.IntRange(1, 150).Draw(t, "vocab"))
		for i := range logits {
			logits[i] = float32(3 * r.NormFloat64())
		}
		row := randomRow(t, r, len(logits))
		require.NoError(t, CheckRow(row, len(logits)))
		before, history := slices.Clone(logits), slices.Clone(row.History)
		var out model.DecodeOut
		for step := range 3 {
			want := naiveRow(logits, row, history)
			id, err := DrawRow(logits, row, history, len(history), &out)
			require.NoError(t, err)
			p, ok := want[id]
			require.True(t, ok && p > 0, "token %d cannot be drawn", id)
			require.InDelta(t, math.Log(p), out.Logprobs[step], 2e-5)
			require.Equal(t, id, out.IDs[step])
			history = append(history, id)
			raw := naiveRow(logits, &model.DecodeRow{Sampling: model.Sampling{Temperature: 1}}, nil)
			if row.Raw {
				require.InDelta(t, math.Log(raw[id]), out.Raw[step], 2e-5)
			}
			if row.Top > 0 {
				require.Len(t, out.Top[step], min(row.Top, len(logits)))
				for k, tl := range out.Top[step] {
					require.InDelta(t, math.Log(raw[tl.ID]), tl.Logprob, 2e-5)
					if k > 0 {
						require.LessOrEqual(t, tl.Logprob, out.Top[step][k-1].Logprob)
					}
				}
			}
		}
		require.Equal(t, before, logits)
		require.Equal(t, row.Raw, len(out.Raw) == 3)
		require.Equal(t, row.Top > 0, len(out.Top) == 3)
		if c, ok := row.Constraint.(*allowed); ok {
			require.Equal(t, out.IDs, c.accepted)
		}
	})
}

// A row that asks for nothing more, or for things that change nothing, is Draw
// to the bit.
func TestDrawRowIsDraw(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	logits := make([]float32, 300)
	for i := range logits {
		logits[i] = float32(2 * r.NormFloat64())
	}
	everything := &allowed{ids: map[int32]bool{}}
	for i := range int32(300) {
		everything.ids[i] = true
	}
	for _, s := range []model.Sampling{{}, {Temperature: 0.8, Seed: 5}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopK: 9}, {Temperature: 1.1, TopK: 50, TopP: 0.8}} {
		for pos := range 60 {
			id, lp, err := Draw(logits, s, pos)
			require.NoError(t, err)
			for _, row := range []*model.DecodeRow{
				{Sampling: s},
				{Sampling: s, Raw: true, Top: 3},
				{Sampling: s, Bias: []model.TokenBias{{ID: 4}}, Constraint: everything},
			} {
				var out model.DecodeOut
				got, err := DrawRow(logits, row, nil, pos, &out)
				require.NoError(t, err)
				require.Equal(t, id, got)
				require.Equal(t, []float32{lp}, out.Logprobs)
			}
		}
	}
}

// Golden values of the three penalties, worked by hand: prompt [0 1], output
// [1 2 2], logits all 2 but token 3's -2.
func TestPenaltiesByHand(t *testing.T) {
	row := &model.DecodeRow{Prompt: 2, Sampling: model.Sampling{RepetitionPenalty: 2, FrequencyPenalty: 0.5, PresencePenalty: 0.25}}
	var w workspace
	got, err := w.edit([]float32{2, 2, 2, -2, 2}, row, []int32{0, 1, 1, 2, 2})
	require.NoError(t, err)
	require.Equal(t, []float32{1, 0.25, -0.25, -2, 2}, got)
	got, err = w.edit([]float32{2, 2, 2, -2, 2}, row, []int32{0, 1, 3})
	require.NoError(t, err)
	require.Equal(t, []float32{1, 1, 2, -4.75, 2}, got, "the marks of the last draw are gone")
}

func TestRawIgnoresEverything(t *testing.T) {
	row := &model.DecodeRow{Raw: true, Top: 2, Bias: []model.TokenBias{{ID: 0, Bias: float32(math.Inf(-1))}}}
	var out model.DecodeOut
	id, err := DrawRow([]float32{2, 0}, row, nil, 0, &out)
	require.NoError(t, err)
	require.EqualValues(t, 1, id)
	require.Zero(t, out.Logprobs[0], "the only token left")
	require.InDelta(t, -2.12693, out.Raw[0], 1e-5)
	require.EqualValues(t, 0, out.Top[0][0].ID)
	require.InDelta(t, -0.12693, out.Top[0][0].Logprob, 1e-5)
	require.InDelta(t, -2.12693, out.Top[0][1].Logprob, 1e-5)
}

func TestTopLeavesOutWhatCannotBeDrawn(t *testing.T) {
	inf := float32(math.Inf(-1))
	got := top([]float32{inf, 1, 1, inf, 0}, logSumExp([]float32{inf, 1, 1, inf, 0}), 5)
	require.Len(t, got, 3)
	require.Equal(t, []int32{1, 2, 4}, []int32{got[0].ID, got[1].ID, got[2].ID})
}

func TestRowFailsAlone(t *testing.T) {
	logits := []float32{1, 2, 3}
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		why  string
		row  model.DecodeRow
		want error
		says string
	}{
		{"nothing allowed", model.DecodeRow{Constraint: &allowed{}}, ErrNoToken, "leave none of 3"},
		{"only beyond the vocabulary", model.DecodeRow{Constraint: &allowed{ids: map[int32]bool{3: true, 63: true}}}, ErrNoToken, ""},
		{"bias forbids all", model.DecodeRow{Bias: []model.TokenBias{{ID: 0, Bias: inf}, {ID: 1, Bias: inf}, {ID: 2, Bias: inf}}}, ErrNoToken, ""},
		{"bias against constraint", model.DecodeRow{Bias: []model.TokenBias{{ID: 1, Bias: inf}}, Constraint: &allowed{ids: map[int32]bool{1: true}}}, ErrNoToken, ""},
		{"allow panics", model.DecodeRow{Constraint: &allowed{panicAt: "allow"}}, ErrConstraint, "allow panicked: grammar bug"},
		{"accept panics", model.DecodeRow{Constraint: &allowed{ids: map[int32]bool{1: true}, panicAt: "accept"}}, ErrConstraint, "accept panicked: grammar bug"},
		{"accept refuses", model.DecodeRow{Constraint: &allowed{ids: map[int32]bool{1: true}, refuse: true}}, ErrConstraint, "not in the grammar"},
		{"overflow", model.DecodeRow{History: []int32{2}, Last: 2, Sampling: model.Sampling{RepetitionPenalty: 1e-300}}, ErrNonFinite, "token 2"},
	} {
		var out model.DecodeOut
		_, err := DrawRow(logits, &c.row, c.row.History, 1, &out)
		require.ErrorIs(t, err, c.want, c.why)
		require.ErrorContains(t, err, c.says, c.why)
		require.Equal(t, model.DecodeOut{}, out, c.why)
	}
	nan := float32(math.NaN())
	_, err := DrawRow([]float32{1, nan}, &model.DecodeRow{Constraint: &allowed{ids: map[int32]bool{0: true}}}, nil, 0, &model.DecodeOut{})
	require.ErrorIs(t, err, ErrNonFinite, "a constraint does not hide broken logits")
}

func TestCheckRow(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for says, row := range map[string]model.DecodeRow{
		"min_p is -0.1":                        {Sampling: model.Sampling{MinP: -0.1}},
		"min_p is 1.5":                         {Sampling: model.Sampling{MinP: 1.5}},
		"min_p is NaN":                         {Sampling: model.Sampling{MinP: nan}},
		"repetition_penalty is -1":             {Sampling: model.Sampling{RepetitionPenalty: -1}},
		"repetition_penalty is +Inf":           {Sampling: model.Sampling{RepetitionPenalty: inf}},
		"frequency_penalty is NaN":             {Sampling: model.Sampling{FrequencyPenalty: nan}},
		"presence_penalty is +Inf":             {Sampling: model.Sampling{PresencePenalty: inf}},
		"bias 1 is for token 7":                {Bias: []model.TokenBias{{ID: 1}, {ID: 7}}},
		"bias 0 is for token -1":               {Bias: []model.TokenBias{{ID: -1}}},
		"bias of token 1 is NaN":               {Bias: []model.TokenBias{{ID: 1, Bias: float32(nan)}}},
		"bias of token 2 is +Inf":              {Bias: []model.TokenBias{{ID: 2, Bias: float32(inf)}}},
		"top is -3":                            {Top: -3},
		"history of 0 tokens does not end":     {Sampling: model.Sampling{PresencePenalty: 1}, Last: 2},
		"history of 2 tokens does not end":     {Sampling: model.Sampling{PresencePenalty: 1}, Last: 2, History: []int32{1, 3}},
		"prompt is 3 tokens of a history of 2": {Sampling: model.Sampling{FrequencyPenalty: 1}, Last: 3, History: []int32{1, 3}, Prompt: 3},
		"history has token 9 at 0":             {Sampling: model.Sampling{RepetitionPenalty: 2}, Last: 3, History: []int32{9, 3}, Prompt: 1},
	} {
		require.ErrorContains(t, CheckRow(&row, 7), says)
	}
	require.NoError(t, CheckRow(&model.DecodeRow{Bias: []model.TokenBias{{ID: 6, Bias: float32(-inf)}}, History: []int32{99}}, 7),
		"history is not looked at without penalties")
	for _, row := range []model.DecodeRow{{Raw: true}, {Top: 1}, {Bias: make([]model.TokenBias, 1)}, {Constraint: &allowed{}},
		{Sampling: model.Sampling{RepetitionPenalty: 1.1}}, {Sampling: model.Sampling{FrequencyPenalty: 1}}, {Sampling: model.Sampling{PresencePenalty: -1}},
		{Sampling: model.Sampling{MinP: 0.1, Temperature: 1}}} {
		require.True(t, NeedsHost(&row), "%+v", row)
	}
	for _, row := range []model.DecodeRow{{}, {Sampling: model.Sampling{Temperature: 1, TopK: 4, TopP: 0.5}}, {Sampling: model.Sampling{RepetitionPenalty: 1}}, {Sampling: model.Sampling{MinP: 0.5}}} {
		require.False(t, NeedsHost(&row), "%+v", row)
	}
}

// FuzzDrawRow: whatever passes CheckRow draws a possible token or says why not.
func FuzzDrawRow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200}, 1.0, 0.9, 0.1, 1.2, 0.5, -0.5, 3, 2, uint8(1))
	f.Add([]byte{0}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, uint8(0))
	f.Add([]byte{255, 255, 0}, 1e-9, 1e-9, 1.0, 1e300, 1e300, 1e300, 1, 9, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, temperature, topP, minP, repetition, frequency, presence float64, topK, topN int, flags uint8) {
		if len(data) == 0 || len(data) > 300 {
			return
		}
		logits := make([]float32, len(data))
		for i, b := range data {
			logits[i] = (float32(b) - 128) / 8
			if b == 0 {
				logits[i] = float32(math.Inf(-1))
			}
		}
		row := &model.DecodeRow{Last: 0, History: []int32{int32(len(data) - 1), 0}, Prompt: 1, Raw: flags&1 != 0, Top: topN,
			Sampling: model.Sampling{Temperature: temperature, TopP: topP, TopK: topK, MinP: minP, RepetitionPenalty: repetition, FrequencyPenalty: frequency, PresencePenalty: presence, Seed: uint64(flags)}}
		if flags&2 != 0 {
			row.Bias = []model.TokenBias{{ID: 0, Bias: float32(math.Inf(-1))}}
		}
		if CheckRow(row, len(logits)) != nil {
			return
		}
		var out model.DecodeOut
		id, err := DrawRow(logits, row, row.History, 2, &out)
		if err != nil {
			if !errors.Is(err, ErrNonFinite) && !errors.Is(err, ErrNoToken) {
				t.Fatal(err)
			}
			return
		}
		if id < 0 || int(id) >= len(logits) || math.IsInf(float64(logits[id]), -1) || !(out.Logprobs[0] <= 1e-6) {
			t.Fatalf("drew %d (%v) with logprob %v", id, logits[id], out.Logprobs[0])
		}
	})
}
