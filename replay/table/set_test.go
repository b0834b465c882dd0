package table

import (
	"bytes"
	"fmt"
	"math"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// memKV is a naive KV.
type memKV map[string][]byte

func (m memKV) Get(k []byte) ([]byte, bool, error) { v, ok := m[string(k)]; return v, ok, nil }
func (m memKV) Set(k, v []byte) error              { m[string(k)] = bytes.Clone(v); return nil }
func (m memKV) Delete(k []byte) error              { delete(m, string(k)); return nil }
func (m memKV) Iterate(prefix, from []byte, fn func(k, v []byte) bool) error {
	var keys []string
	for k := range m {
		if bytes.HasPrefix([]byte(k), prefix) && bytes.Compare([]byte(k), from) >= 0 {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		if !fn([]byte(k), m[k]) {
			return nil
		}
	}
	return nil
}

func newSet(t require.TestingT, sel Selector) (*Set, memKV) {
	kv := memKV{}
	s, err := NewSet(kv, []byte("p"), sel)
	require.NoError(t, err)
	return s, kv
}

// chiSquare is the statistic of counts against shares of n draws.
func chiSquare(counts []int, shares []float64, n int) float64 {
	x := 0.0
	for i, c := range counts {
		want := shares[i] * float64(n)
		x += (float64(c) - want) * (float64(c) - want) / want
	}
	return x
}

// draws takes one of k entries n times, putting it back, and counts.
func draws(t *testing.T, sel Selector, priorities []float64, n int) ([]int, []float64) {
	s, _ := newSet(t, sel)
	entries := map[string]Entry{}
	for i, p := range priorities {
		e := Entry{Group: fmt.Sprint(i), Seq: uint64(i), Priority: p}
		entries[e.Group] = e
		require.NoError(t, s.Insert(e))
	}
	counts, probs := make([]int, len(priorities)), make([]float64, len(priorities))
	draw := Draw{Seed: 7}
	stratum := ""
	for range n {
		got, err := s.Take(1, &stratum, &draw)
		require.NoError(t, err)
		e := entries[got[0].Group]
		counts[e.Seq]++
		probs[e.Seq] = got[0].Probability
		require.NoError(t, s.Insert(e))
	}
	return counts, probs
}

// TestUniformIsUniform: 99.9 % of true uniform samples pass the bound (19
// degrees of freedom); the seed is fixed.
func TestUniformIsUniform(t *testing.T) {
	priorities := make([]float64, 20)
	counts, probs := draws(t, Selector{Kind: Uniform}, priorities, 20000)
	shares := make([]float64, 20)
	for i := range shares {
		shares[i] = 1. / 20
		require.Equal(t, shares[i], probs[i])
	}
	require.Less(t, chiSquare(counts, shares, 20000), 43.8, "%v", counts)
}

// TestPrioritizedFollowsThePaper: "we define the probability of sampling
// transition i as P(i) = p_i^a / sum_k p_k^a" (Schaul et al. 2016, eq. 1).
func TestPrioritizedFollowsThePaper(t *testing.T) {
	priorities := []float64{0.1, 0.5, 1, 2, 3, 5, 8, 13, 21, 0}
	for _, exponent := range []float64{0, 0.6, 1, 2} {
		t.Run(fmt.Sprint(exponent), func(t *testing.T) {
			counts, probs := draws(t, Selector{Kind: Prioritized, Exponent: exponent}, priorities, 20000)
			sum := 0.0
			for _, p := range priorities[:9] {
				sum += math.Pow(p, exponent)
			}
			shares := make([]float64, 9)
			for i := range shares {
				shares[i] = math.Pow(priorities[i], exponent) / sum
				if counts[i] > 0 {
					require.InDelta(t, shares[i], probs[i], 1e-5)
				}
			}
			require.Zero(t, counts[9], "priority 0 is never chosen beside others")
			require.Less(t, chiSquare(counts[:9], shares, 20000), 26.1, "%v", counts)
		})
	}
}

// TestPrioritizedAllZeroIsUniform, as in Reverb.
func TestPrioritizedAllZeroIsUniform(t *testing.T) {
	counts, _ := draws(t, Selector{Kind: Prioritized, Exponent: 1}, make([]float64, 5), 5000)
	require.Less(t, chiSquare(counts, []float64{.2, .2, .2, .2, .2}, 5000), 18.5, "%v", counts)
}

func TestPowIsPow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := math.Ldexp(rapid.Float64Range(0.5, 1).Draw(t, "m"), rapid.IntRange(-40, 40).Draw(t, "x"))
		e := rapid.Float64Range(0, 4).Draw(t, "e")
		want := math.Pow(p, e)
		require.InEpsilon(t, want, pow(p, e), 1e-13)
	})
	require.Equal(t, 8.0, pow(8, 1))
	require.Equal(t, 1.0, pow(8, 0))
}

// TestWeightBits: the exact weights of some priorities, which must be the same
// on every machine; replicas of other architectures would diverge else.
func TestWeightBits(t *testing.T) {
	for _, c := range []struct {
		p, e float64
		want uint64
	}{{0, 0.6, 0}, {-1, 1, 0}, {1, 0.6, 1 << 20}, {32, 0.6, 8 << 20}, {1e-30, 0.6, 1}, {0.3, 0.7, 451424}, {7.77, 1.3, 15071179}, {1e30, 1, maxWeight}} {
		require.Equal(t, c.want, weight(c.p, c.e), "weight(%v, %v)", c.p, c.e)
	}
}

// TestSetsAgainstNaive: every kind, with strata and epochs, against a sorted
// list; whatever the order of inserts, removals, updates and choices.
func TestSetsAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sel := Selector{Kind: rapid.SampledFrom([]Kind{FIFO, LIFO, Uniform, Prioritized, MaxHeap, MinHeap}).Draw(t, "kind"), Epochs: rapid.Bool().Draw(t, "epochs")}
		if sel.Kind == Prioritized {
			sel.Exponent = 1
		}
		if rapid.Bool().Draw(t, "strata") {
			sel.Stratify = ByTask
		}
		s, kv := newSet(t, sel)
		have := map[string]Entry{}
		seq, draw, stratum := uint64(0), Draw{}, ""
		pick := func() Entry {
			var names []string
			for k := range have {
				names = append(names, k)
			}
			sort.Strings(names)
			return have[rapid.SampledFrom(names).Draw(t, "which")]
		}
		for range rapid.IntRange(1, 150).Draw(t, "length") {
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 5 || len(have) == 0:
				seq++
				e := Entry{fmt.Sprint("g", seq), seq, float64(rapid.IntRange(-2, 3).Draw(t, "p")), uint64(rapid.IntRange(0, 2).Draw(t, "epoch")),
					rapid.SampledFrom([]string{"", "a", "a\x00", "b"}).Draw(t, "stratum")}
				have[e.Group] = e
				require.NoError(t, s.Insert(e))
			case op < 7:
				e := pick()
				delete(have, e.Group)
				require.NoError(t, s.Remove(e))
			case op < 8:
				e := pick()
				p := float64(rapid.IntRange(-2, 3).Draw(t, "p"))
				require.NoError(t, s.Update(e, p))
				e.Priority = p
				have[e.Group] = e
			default:
				n := rapid.IntRange(1, 4).Draw(t, "n")
				got, err := s.Take(n, &stratum, &draw)
				require.NoError(t, err)
				require.Len(t, got, min(n, len(have)))
				for _, x := range got {
					e, ok := have[x.Group]
					require.True(t, ok, "%s was not there", x.Group)
					for _, o := range have {
						require.False(t, before(sel, o, e), "%+v comes before %+v", o, e)
					}
					delete(have, x.Group)
				}
			}
			total := uint64(0)
			for _, e := range have {
				total += weight(e.Priority, 1)
			}
			if sel.Kind == Prioritized && !sel.Epochs && sel.Stratify == "" {
				b, err := s.open(0, "")
				require.NoError(t, err)
				sum, err := b.total()
				require.NoError(t, err)
				require.Equal(t, total, sum)
			}
		}
		for len(have) > 0 {
			e := pick()
			delete(have, e.Group)
			require.NoError(t, s.Remove(e))
		}
		require.Empty(t, kv, "an empty set leaves nothing behind")
	})
}

// before says whether a must be chosen before b.
func before(sel Selector, a, b Entry) bool {
	if sel.Epochs && a.Epoch != b.Epoch {
		return a.Epoch < b.Epoch
	}
	if sel.Stratify != "" && a.Stratum != b.Stratum {
		return false
	}
	switch sel.Kind {
	case FIFO:
		return a.Seq < b.Seq
	case LIFO:
		return a.Seq > b.Seq
	case MaxHeap:
		return a.Priority > b.Priority || a.Priority == b.Priority && a.Seq < b.Seq
	case MinHeap:
		return a.Priority < b.Priority || a.Priority == b.Priority && a.Seq < b.Seq
	case Prioritized:
		return a.Priority > 0 && b.Priority <= 0
	}
	return false
}

// TestStrataTakeTurns: each stratum once before any comes twice.
func TestStrataTakeTurns(t *testing.T) {
	s, _ := newSet(t, Selector{Kind: Uniform, Stratify: BySource})
	seq := uint64(0)
	for _, n := range []struct {
		stratum string
		k       int
	}{{"a", 50}, {"b", 5}, {"c", 7}} {
		for range n.k {
			seq++
			require.NoError(t, s.Insert(Entry{Group: fmt.Sprint(n.stratum, seq), Seq: seq, Stratum: n.stratum}))
		}
	}
	stratum, draw := "", Draw{}
	got, err := s.Take(15, &stratum, &draw)
	require.NoError(t, err)
	for i, x := range got {
		require.Equal(t, "abc"[i%3:i%3+1], x.Group[:1])
	}
}

// TestSetCost: what a choice costs does not grow with the set.
func TestSetCost(t *testing.T) {
	for kind := range structures {
		t.Run(string(kind), func(t *testing.T) {
			sel := Selector{Kind: kind}
			if kind == Prioritized {
				sel.Exponent = 0.6
			}
			kv := &countingKV{memKV: memKV{}}
			s, err := NewSet(kv, []byte("p"), sel)
			require.NoError(t, err)
			var cost [2]int
			seq := uint64(0)
			draw := Draw{}
			for i, size := range []uint64{100, 5000} {
				for ; seq < size; seq++ {
					require.NoError(t, s.Insert(Entry{Group: fmt.Sprint(seq), Seq: seq, Priority: float64(seq % 17)}))
				}
				kv.n = 0
				stratum := ""
				got, err := s.Take(1, &stratum, &draw)
				require.NoError(t, err)
				n, err := fmt.Sscan(got[0].Group, new(uint64))
				require.NoError(t, err)
				require.Equal(t, 1, n)
				cost[i] = kv.n
			}
			require.LessOrEqual(t, cost[1], cost[0]+2*levels*2)
			require.Less(t, cost[1], 40)
		})
	}
}

type countingKV struct {
	memKV
	n int
}

func (c *countingKV) Get(k []byte) ([]byte, bool, error) { c.n++; return c.memKV.Get(k) }
func (c *countingKV) Set(k, v []byte) error              { c.n++; return c.memKV.Set(k, v) }
func (c *countingKV) Delete(k []byte) error              { c.n++; return c.memKV.Delete(k) }
func (c *countingKV) Iterate(p, from []byte, fn func(k, v []byte) bool) error {
	return c.memKV.Iterate(p, from, func(k, v []byte) bool { c.n++; return fn(k, v) })
}
