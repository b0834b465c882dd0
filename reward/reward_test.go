package reward

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Cases row "reward: row for which every reward function abstained was summed
// to 0": a broken score is unscored, with its cause, and never zero.
func TestGuardNeverScoresZeroBecauseSomethingBroke(t *testing.T) {
	for _, c := range []struct {
		name  string
		judge func() (float64, error)
		cause string
	}{
		{"error", func() (float64, error) { return 0, errors.New("judge is down") }, "judge is down"},
		{"nan", func() (float64, error) { return math.NaN(), nil }, "NaN"},
		{"inf", func() (float64, error) { return math.Inf(-1), nil }, "-Inf"},
		{"panic", func() (float64, error) { panic("index out of range") }, "index out of range"},
	} {
		s := Guard(c.judge)
		require.False(t, s.Scored, c.name)
		require.Contains(t, s.Cause, c.cause)
	}
	require.Equal(t, Score{Value: 0, Scored: true}, Guard(func() (float64, error) { return 0, nil }))

	mean, ok := Mean([]Score{{Value: 1, Scored: true}, {Cause: "abstained"}, {Value: 0, Scored: true}})
	require.True(t, ok)
	require.Equal(t, 0.5, mean)
	_, ok = Mean([]Score{{Cause: "x"}})
	require.False(t, ok)
}

func TestNumericMatch(t *testing.T) {
	s, err := Open("numeric_match")
	require.NoError(t, err)
	for _, c := range []struct {
		final, answer string
		want          float64
	}{
		{"141", "141", 1},
		{"The total is $1,234.50.", "1234.5", 1},
		{"#### 18", "18", 1},
		{"first 3 then 4\n#### 7", `"7"`, 1},
		{"#### 7 apples", "7", 0},
		{"-5", "5", 0},
		{"-5", "-5", 1},
		{"141.0", "141", 1},
		{"0.30000000000000004", "0.3", 0},
		{"140 or 141", "141", 0}, // spraying candidates is no answer
		{"1411", "141", 0},
		{"", "141", 0},
		{"#### 1\n#### 2", "2", 1},
	} {
		got, err := s.Score(Sample{Final: c.final, Answer: json.RawMessage(c.answer)})
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%q against %s", c.final, c.answer)
	}
	_, err = s.Score(Sample{Final: "1", Answer: json.RawMessage(`"many"`)})
	require.ErrorContains(t, err, `"many" is not a number`)
}

func TestOpenNamesTheScorers(t *testing.T) {
	_, err := Open("bleu")
	require.ErrorContains(t, err, "ast_match, numeric_match")
	for _, n := range Names() {
		s, err := Open(n)
		require.NoError(t, err)
		require.Equal(t, n, s.Name())
	}
}
