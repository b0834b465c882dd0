package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

// judgeFunc is a scorer with a name.
type judgeFunc struct {
	name  string
	score func(context.Context, Task, Episode) (float64, error)
}

func (j judgeFunc) Name() string           { return j.name }
func (j judgeFunc) Timeout() time.Duration { return time.Minute }
func (j judgeFunc) Score(ctx context.Context, t Task, e Episode) (float64, error) {
	return j.score(ctx, t, e)
}

func judgedBy(t *testing.T, task Task, turns []string, judges ...Scorer) *eventlog.Log {
	t.Helper()
	l := newLoop(t, newScript(turns...), byteChat{}, nil)
	l.JudgeWith(judges...)
	log, err := l.Run(t.Context(), task, aRequest())
	require.NoError(t, err)
	return log
}

func components(log *eventlog.Log) map[string]any {
	for _, e := range log.History() {
		if e.Kind == eventlog.Reward {
			c, _ := e.Payload["components"].(map[string]any)
			for k, v := range c {
				if n, ok := v.(json.Number); ok {
					c[k], _ = n.Float64()
				}
			}
			return c
		}
	}
	return nil
}

// A scorer's score stands beside the task's, which stays the reward's value.
func TestScorersAreComponents(t *testing.T) {
	var seen []Message
	nice := judgeFunc{"nice", func(_ context.Context, _ Task, e Episode) (float64, error) {
		seen = e.Messages
		return -2.5, nil
	}}
	log := judgedBy(t, echoTask(), []string{"Now " + call("echo", `{"n":1}`), "done\n"}, nice, judgeFunc{"long", func(context.Context, Task, Episode) (float64, error) { return 4, nil }})
	require.Equal(t, eventlog.OK, log.Meta.Status)
	v, ok := log.EpisodeReward()
	require.True(t, ok)
	require.Equal(t, 1., v)
	require.Equal(t, map[string]any{TaskComponent: 1., "nice": -2.5, "long": 4.}, components(log))
	var roles []string
	for _, m := range seen {
		roles = append(roles, m.Role)
	}
	require.Equal(t, []string{"system", "user", "assistant", "tool", "assistant"}, roles)
	require.Equal(t, "done\n", seen[4].Content)

	// a task without a score of its own
	task := echoTask()
	task.Score = nil
	log = judgedBy(t, task, []string{"done\n"}, nice)
	v, ok = log.EpisodeReward()
	require.True(t, ok)
	require.Equal(t, -2.5, v)
	require.Equal(t, map[string]any{"nice": -2.5}, components(log))

	// without scorers nothing is new
	require.Nil(t, components(judgedBy(t, echoTask(), []string{"done\n"})))
}

// A scorer that breaks, or hangs, makes the rollout failed with its name and
// cause; the task's score does not stand alone, and nothing is zero.
func TestBrokenScorerFailsTheRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, score := range map[string]func(context.Context, Task, Episode) (float64, error){
			"reward: rm: device is lost": func(context.Context, Task, Episode) (float64, error) { return 0, errors.New("device is lost") },
			"reward: rm: panic: oops":    func(context.Context, Task, Episode) (float64, error) { panic("oops") },
			"reward: rm: ": func(ctx context.Context, _ Task, _ Episode) (float64, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			},
		} {
			log := judgedBy(t, echoTask(), []string{"done\n"}, judgeFunc{"rm", score})
			require.Equal(t, eventlog.Failed, log.Meta.Status)
			require.Contains(t, log.Meta.Cause, want)
			_, scored := log.EpisodeReward()
			require.False(t, scored)
		}
	})
}

// A worker that drains while an episode is judged records nothing: the group goes
// back.
func TestDrainingWhileJudgingIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	l := newLoop(t, newScript("done\n"), byteChat{}, nil)
	l.JudgeWith(judgeFunc{"rm", func(ctx context.Context, _ Task, _ Episode) (float64, error) {
		cancel(errors.New("told to stop"))
		<-ctx.Done()
		return 0, ctx.Err()
	}})
	log, err := l.Run(ctx, echoTask(), aRequest())
	require.Nil(t, log)
	require.ErrorContains(t, err, "told to stop")
}
