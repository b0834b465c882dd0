package rollout

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestToolTimesAreBounded(t *testing.T) {
	var times toolTimes
	times.add("search", time.Second, false)
	times.add("search", 3*time.Second, true)
	require.Equal(t, ToolTime{Calls: 2, Errors: 1, Total: 4 * time.Second, Max: 3 * time.Second}, times.get()["search"])
	require.Equal(t, 2*time.Second, times.get()["search"].Mean())
	for i := range 1000 { // a model that makes names up
		times.add(fmt.Sprint("made-up-", i), time.Millisecond, true)
	}
	got := times.get()
	require.Len(t, got, maxToolNames+1)
	require.Equal(t, uint64(1000-maxToolNames+1), got["other"].Calls)
	require.Zero(t, ToolTime{}.Mean())
}
