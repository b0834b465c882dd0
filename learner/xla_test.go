//go:build xla

package learner

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/xla"
)

// A step of ppo on compiled programs has the metrics and gradients, of policy
// and critic, that it has on the pure-Go backend. Prompts of one token share
// nothing between the critic's members.
func TestXLAPPOAsGo(t *testing.T) {
	if os.Getenv(xla.PluginEnv) == "" {
		t.Skipf("%s is not set: make test-xla sets it", xla.PluginEnv)
	}
	c := ppoConfig(4)
	c.NumIterations, c.TokenBudget, c.Temperature, c.MaxGradNorm = 1, 1<<20, .8, 0
	m, goBackend := realBackend(t)
	xlaBackend, err := xla.Open(m, xla.Options{Dtype: "f32"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, xlaBackend.Close()) })
	ours, _ := ppoOn(t, c, m, xlaBackend)
	theirs, _ := ppoOn(t, c, m, goBackend)
	groups := decode(t, goBackend, theirs.Adapter(), 0, c.Temperature, 1, "a", "b")
	short := Group{ID: "short", Index: 2}
	for i := range uint32(4) {
		short.Logs = append(short.Logs, entry{group: "short", member: i, size: 4, prompt: []int32{3},
			parts: []part{pol(0, 4, int32(5+i)), env(9), pol(0, int32(6+i), 2)}, reward: r(float64(i))}.log(t))
	}
	groups = append(groups, short)
	require.Equal(t, eventlog.Prompt, short.Logs[0].Branches[0].Runs[0].Writer)

	x, y := step(t, ours, groups...), step(t, theirs, groups...)
	for name, want := range y.Metrics {
		if len(name) > 5 && name[:5] == "time/" {
			continue
		}
		require.InDelta(t, want, x.Metrics[name], 2e-4*(1+math.Abs(want)), name)
	}
	for i, tr := range []model.Trainer{ours.tr, ours.critic.tr} {
		other := []model.Trainer{theirs.tr, theirs.critic.tr}[i]
		for _, p := range tr.Layout() {
			var diff, norm float64
			for k := p.Offset; k < p.Offset+p.Len(); k++ {
				diff += math.Pow(float64(tr.Grad()[k]-other.Grad()[k]), 2)
				norm += math.Pow(float64(other.Grad()[k]), 2)
			}
			require.LessOrEqual(t, math.Sqrt(diff), 2e-4*math.Sqrt(norm)+1e-7, p.Name)
		}
	}
}
