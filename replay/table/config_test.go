package table

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaultIsValid(t *testing.T) { require.NoError(t, Default().Validate()) }

// TestConfigRoundTrip: every field is recorded, and nothing else is read.
func TestConfigRoundTrip(t *testing.T) {
	c := Default()
	c.TTL, c.Sampler, c.MaxStaleness = Duration(90*time.Second), Selector{Prioritized, 0.6, ByTask, true}, 3
	b, err := c.Encode()
	require.NoError(t, err)
	require.Contains(t, string(b), `"ttl":"1m30s"`)
	back, err := Decode(b, Config{})
	require.NoError(t, err)
	require.Equal(t, c, back)
	for _, bad := range []string{`{"samplr":{}}`, `{"ttl":5}`, `{"ttl":"soon"}`, `{} {}`, `[]`, ``, `{"sampler":{"kind":1}}`, `{"max_items":-1}`} {
		_, err := Decode([]byte(bad), Default())
		require.ErrorIs(t, err, ErrConfig, bad)
	}
}

// TestValidateNamesEverything that is wrong, with the value.
func TestValidateNamesEverything(t *testing.T) {
	c := Config{Sampler: Selector{Kind: Prioritized, Exponent: math.NaN(), Stratify: "colour"}, Remover: Selector{Kind: "x", Epochs: true},
		Limiter: Limiter{Kind: SamplesPerInsert, SamplesPerInsert: math.Inf(1)}, GroupSize: MaxGroupSize + 1, Priority: math.Inf(-1), MaxItems: maxEntries + 1}
	err := c.Validate()
	require.ErrorIs(t, err, ErrConfig)
	for _, part := range []string{"sampler.exponent = NaN", `sampler.stratify = "colour"`, `remover.kind = "x"`, "remover.epochs", "limiter.min_size = 0",
		"limiter.samples_per_insert = +Inf", "group_size = 1025", `constant_groups = ""`, `on_full = ""`, `priority_from = ""`, "priority = -Inf", "max_items = 16777217"} {
		require.ErrorContains(t, err, part)
	}
	require.ErrorContains(t, Config{Limiter: Limiter{Kind: "drip"}}.Validate(), `limiter.kind = "drip"`)
}

func FuzzDecode(f *testing.F) {
	b, err := Default().Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"sampler":{"kind":"prioritized","exponent":0.6},"ttl":"1h"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b, Default())
		if err != nil {
			require.ErrorIs(t, err, ErrConfig)
			return
		}
		_ = c.Validate()
		again, err := c.Encode()
		require.NoError(t, err)
		back, err := Decode(again, Config{})
		require.NoError(t, err)
		require.Equal(t, c, back)
	})
}
