package rollout

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

// Every turn is judged as it ends, before its turn_complete; one that the judge
// leaves out has no reward.
func TestTurnScores(t *testing.T) {
	e := newScript(call("echo", `{"n":1}`)+call("echo", `{"n":2}`), call("echo", `{"n":3}`), "done\n")
	task := echoTask()
	var seen []Episode
	task.TurnScore = func(ep Episode) (float64, bool, error) {
		seen = append(seen, ep)
		return float64(len(ep.Calls) - ep.Before), len(seen) != 2, nil
	}
	log, err := newLoop(t, e, byteChat{}, nil).Run(t.Context(), task, aRequest())
	require.NoError(t, err)
	require.Equal(t, eventlog.OK, log.Meta.Status)
	require.Equal(t, []float64{2, 0}, log.Rewards(eventlog.TurnScope))
	require.True(t, strings.HasSuffix(story(log), "text(done)\nreward\nturn_complete\nreward"), story(log))
	require.Equal(t, []int{0, 2, 3}, []int{seen[0].Before, seen[1].Before, seen[2].Before})
	require.Equal(t, "done", strings.TrimSpace(seen[2].Final))
	checkTokens(t, e, log)
}

// A turn that was cut is judged too, as truncated.
func TestTurnScoreOfACutTurn(t *testing.T) {
	e := scripted(func(int, GenerateRequest) (Generation, error) { return cut("never ends"), nil })
	task := echoTask()
	task.TurnScore = func(ep Episode) (float64, bool, error) { return 7, ep.Truncated, nil }
	log, err := newLoop(t, e, byteChat{}, nil).Run(t.Context(), task, aRequest())
	require.NoError(t, err)
	require.Equal(t, eventlog.Truncated, log.Meta.Status)
	require.Equal(t, []float64{7}, log.Rewards(eventlog.TurnScope))
}

// A judge of turns that breaks makes the rollout failed with its cause; nothing is
// scored.
func TestBrokenTurnScoreFailsTheRollout(t *testing.T) {
	for want, judge := range map[string]func(Episode) (float64, bool, error){
		"reward: turn: judge is down":       func(Episode) (float64, bool, error) { return 0, false, errors.New("judge is down") },
		"reward: turn: score is NaN":        func(Episode) (float64, bool, error) { return math.NaN(), true, nil },
		"reward: turn: panic: out of range": func(Episode) (float64, bool, error) { panic("out of range") },
	} {
		task := echoTask()
		task.TurnScore = judge
		log, err := newLoop(t, newScript(call("echo", `{}`), "done\n"), byteChat{}, nil).Run(t.Context(), task, aRequest())
		require.NoError(t, err)
		require.Equal(t, eventlog.Failed, log.Meta.Status)
		require.Contains(t, log.Meta.Cause, want)
		require.Empty(t, log.Rewards(eventlog.TurnScope))
		_, scored := log.EpisodeReward()
		require.False(t, scored)
	}
}
