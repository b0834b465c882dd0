package project

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/rollout"
)

func TestToolTimesTravelInAHeartbeat(t *testing.T) {
	times := map[string]rollout.ToolTime{"web/search": {Calls: 2, Errors: 1, Total: 4 * time.Second, Max: 3 * time.Second}}
	for i := range 10 {
		times[fmt.Sprint("quick", i)] = rollout.ToolTime{Calls: 1, Total: time.Millisecond, Max: time.Millisecond}
	}
	numbers := map[string]float64{"rollouts": 7}
	tellTools(numbers, times)
	back := ToolTimes(numbers)
	require.Len(t, back, toldTools)
	require.Equal(t, ToolTime{Calls: 2, Errors: 1, Seconds: 4, Max: 3}, back["web/search"])
	require.Equal(t, 2., back["web/search"].Mean())
	require.Contains(t, back, "quick0")
}
