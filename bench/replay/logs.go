package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// sizes of the encoded logs, in bytes, and their names in rows.
const (
	small = 8 << 10
	large = 64 << 10
)

func sizeName(n int) string { return fmt.Sprintf("%dKB", n>>10) }

// records are full-tier logs, as a rollout writes them, of about size bytes: a
// prompt shared by the members of a group (a third of the tokens) and sampled
// tokens with log-probabilities; ids come as often as words do (Zipf), most
// log-probabilities are near 0. zstd saves less than an eighth of a log, so that
// they are stored as they are; of what the peers are given half is zeros.
func records(size, n, members int, seed uint64) ([]replay.Record, error) {
	rng := rand.New(rand.NewPCG(seed, uint64(size)))
	out := make([]replay.Record, 0, n)
	for len(out) < n {
		// Grow until the first member is as large as wanted.
		tokens := size / 5
		prompt := tokenIDs(rng, size/15)
		group := fmt.Sprintf("g%d", len(out)/members)
		for m := range members {
			var rec replay.Record
			for k := 0; ; k++ {
				l, err := log(rng, prompt, max(tokens-len(prompt), 1), group, m, members)
				if err != nil {
					return nil, err
				}
				data, err := eventlog.Encode(l)
				if err != nil {
					return nil, err
				}
				rec = replay.Record{Item: rollout.ItemOf(l, len(data)), Bytes: data}
				off := size - len(data)
				if k == 12 || off > -32 && off < 32 {
					break
				}
				tokens += off / 6
				if off/6 == 0 {
					break
				}
			}
			out = append(out, rec)
		}
	}
	return out[:n], nil
}

func tokenIDs(rng *rand.Rand, n int) []int32 {
	z := rand.NewZipf(rng, 1.1, 2.7, 49151)
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(z.Uint64())
	}
	return ids
}

func log(rng *rand.Rand, prompt []int32, sampled int, group string, member, members int) (*eventlog.Log, error) {
	b := eventlog.NewBuilder(eventlog.Meta{
		Run: runName, Group: group, Member: uint32(member), GroupSize: uint32(members), Table: "bench", Source: "bench", Task: group,
		Worker: "w", Created: time.Unix(1_800_000_000, 0),
	})
	p, err := b.AppendTokens(0, prompt, nil, eventlog.Prompt, 0)
	if err != nil {
		return nil, err
	}
	lps := make([]float32, sampled)
	for i := range lps {
		u := rng.Float32()
		lps[i] = -8 * u * u * u * u
	}
	o, err := b.AppendTokens(0, tokenIDs(rng, sampled), lps, eventlog.Policy, 0)
	if err != nil {
		return nil, err
	}
	for _, e := range []eventlog.Event{
		eventlog.NewObservation("env", "benchmark").In(0, p), eventlog.NewText("answer").In(0, o), eventlog.NewReward(eventlog.EpisodeScope, rng.Float64()),
	} {
		if _, err := b.Append(e); err != nil {
			return nil, err
		}
	}
	return b.Finish(eventlog.OK, "")
}
