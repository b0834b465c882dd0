package clock

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOffsetFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "offset")
	hook.file, hook.at, hook.off = file, time.Time{}, 0
	defer func() { hook.file, hook.off = "", 0 }()
	require.WithinDuration(t, time.Now(), Wall(), time.Minute, "no file, no offset")
	require.NoError(t, os.WriteFile(file, []byte(strconv.FormatInt(int64(-3*time.Hour), 10)+"\n"), 0o600))
	hook.at = time.Time{}
	require.WithinDuration(t, time.Now().Add(-3*time.Hour), Wall(), time.Minute)
	require.NoError(t, os.WriteFile(file, []byte("rubbish"), 0o600))
	hook.at = time.Time{}
	require.WithinDuration(t, time.Now().Add(-3*time.Hour), Wall(), time.Minute, "kept")
}

// two clocks that a test moves.
type hands struct{ wall, mono time.Time }

func (h *hands) pass(d time.Duration) { h.wall, h.mono = h.wall.Add(d), h.mono.Add(d) }

func (h *hands) group() *Group {
	return newGroup(func() time.Time { return h.wall }, func() time.Time { return h.mono })
}

func TestGroupTimeNeverJumps(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 300 * time.Millisecond, 0} {
		h := &hands{start, start}
		g := h.group()
		require.Equal(t, start, g.Now())
		h.wall = h.wall.Add(jump)
		before := g.Now()
		require.Equal(t, start, before, "no time passed")
		for range 640 {
			h.pass(100 * time.Millisecond)
			now := g.Now()
			step := now.Sub(before)
			require.GreaterOrEqual(t, step, 93*time.Millisecond, jump)
			require.LessOrEqual(t, step, 107*time.Millisecond, jump)
			before = now
		}
		if jump.Abs() < time.Second {
			require.Equal(t, h.wall, g.Now(), "small steps are made up for")
		}
	}
}

func TestFollowerGoesOnWithTheLeadersTime(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	h := &hands{start.Add(5 * time.Hour), start} // its wall clock is wrong
	g := h.group()
	require.False(t, g.Known())
	g.Observe(start.Add(time.Second), false)
	require.Equal(t, start.Add(time.Second), g.Now())
	g.Observe(start.Add(time.Hour), false)
	require.Equal(t, start.Add(time.Second), g.Now(), "hearsay does not replace what is known")
	g.Observe(start, true)
	require.Equal(t, start, g.Now(), "the leader's word does")
	h.pass(16 * time.Second)
	require.Equal(t, start.Add(17*time.Second), g.Now())
	g.Observe(time.Time{}, true)
	require.Equal(t, start.Add(17*time.Second), g.Now(), "an old node says nothing")
}
