package grammar

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// benchVocabulary is that of the model file named by SKEIN_GRAMMAR_MODEL, or
// 50,000 made-up tokens.
func benchVocabulary(b *testing.B) *Vocabulary {
	b.Helper()
	if path := os.Getenv("SKEIN_GRAMMAR_MODEL"); path != "" {
		m, err := model.Open(path)
		require.NoError(b, err)
		v, err := NewVocabulary(m.Tokenizer, m.StopIDs)
		require.NoError(b, err)
		return v
	}
	r := rand.New(rand.NewPCG(1, 2))
	var tokens [][]byte
	for c := range 256 {
		tokens = append(tokens, []byte{byte(c)})
	}
	letters := `eeeeetttaaooiinnsshhrrdlucmfwypvbgkjqxz  .,"':{}[]0123456789` + "\n"
	for len(tokens) < 49999 {
		var t []byte
		for range 1 + r.IntN(9) {
			t = append(t, letters[r.IntN(len(letters))])
		}
		tokens = append(tokens, t)
	}
	v, err := newVocabulary(append(tokens, nil), []int32{int32(len(tokens))})
	require.NoError(b, err)
	return v
}

const benchSchema = `{"type":"object","properties":{"name":{"type":"string","maxLength":200},"tags":{"type":"array","items":{"type":"string"}},
 "price":{"type":"number"},"kind":{"enum":["a","b","c"]},"deep":{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"string"}},"required":["x"]}},
 "required":["name","tags","price"]}`

const benchText = `{"name": "A cup of \"green\" tea, 250 ml", "tags": ["hot", "drink", "leaf"], "price": 3.75, "kind": "b", "deep": {"x": 12, "y": "z"}}`

// BenchmarkMask is one mask and one step, a byte at a time through a text: cold
// for each program's first pass, warm after it.
func BenchmarkMask(b *testing.B) {
	v := benchVocabulary(b)
	g, err := Schema([]byte(benchSchema), SchemaOptions{})
	require.NoError(b, err)
	mask := make([]uint64, v.Words())
	id := map[byte]int32{}
	for i, t := range v.bytes {
		if len(t) == 1 {
			id[t[0]] = int32(i)
		}
	}
	pass := func(p *Program) {
		m, err := p.Start()
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range []byte(benchText) {
			for i := range mask {
				mask[i] = ^uint64(0)
			}
			m.Allow(mask)
			if err := m.Accept(id[c]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			pass(NewProgram(g, v))
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(benchText)), "µs/mask")
	})
	b.Run("warm", func(b *testing.B) {
		p := NewProgram(g, v)
		pass(p)
		for b.Loop() {
			pass(p)
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(benchText)), "µs/mask")
	})
}
