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
			h.pass(64 * time.Millisecond)
			now := g.Now()
			step := now.Sub(before)
			require.GreaterOrEqual(t, step, 63*time.Millisecond, jump)
			require.LessOrEqual(t, step, 65*time.Millisecond, jump)
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
	_, known := g.Time()
	require.False(t, known)
	g.Hear("b", start.Add(time.Second), true, false)
	now, known := g.Time()
	require.True(t, known)
	require.Equal(t, start.Add(time.Second), now)
	g.Hear("b", start.Add(time.Hour), true, false)
	require.Equal(t, start.Add(time.Second), g.Now(), "hearsay does not replace what is known")
	g.Hear("a", start, true, true)
	require.Equal(t, start, g.Now(), "the leader's word does")
	h.pass(16 * time.Second)
	require.Equal(t, start.Add(16250*time.Millisecond), g.Now())
	g.Hear("a", time.Time{}, false, true)
	g.Lead()
	require.Equal(t, start.Add(16250*time.Millisecond), g.Now())
}

// All nodes have just started: a clock that is wrong decides nothing.
func TestMedianOfWallClocks(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		own    time.Duration
		others []time.Duration
		want   time.Duration
	}{
		{0, nil, 0},
		{50 * time.Hour, []time.Duration{0, time.Second}, time.Second},
		{0, []time.Duration{-50 * time.Hour, time.Second}, 0},
		{time.Hour, []time.Duration{0}, 0},
		{0, []time.Duration{time.Hour}, 0},
		{time.Hour, []time.Duration{0, -time.Hour, 2 * time.Second, time.Second}, time.Second},
	} {
		h := &hands{start.Add(c.own), start}
		g := h.group()
		for i, o := range c.others {
			g.Hear(string(rune('a'+i)), start.Add(o), false, false)
		}
		g.Lead()
		require.Equal(t, start.Add(c.want), g.Now(), "%+v", c)
	}
}
