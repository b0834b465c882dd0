package project

import (
	"context"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/replay"
)

// A run goes on only under the configuration it was started with; where and how
// fast it computes may change.
func TestDifferences(t *testing.T) {
	base := DefaultConfig()
	for name, tc := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"nothing": {func(*Config) {}, nil},
		"machine": {func(c *Config) { c.Threads, c.MemoryLimitMB, c.Limits.MaxEmpty, c.Model = 3, 9, 2, "elsewhere" }, nil},
		"values": {func(c *Config) {
			c.Training.LearningRate, c.LoRA.Targets, c.Task.Options = 0.5, []string{"q_proj"}, map[string]string{"seed": "2"}
		},
			[]string{"lora.targets [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], now [q_proj]", "task.options.seed unset, now 2", "training.learning_rate 1e-06, now 0.5"}},
	} {
		c := base
		tc.change(&c)
		got, err := differences(base, c)
		require.NoError(t, err)
		require.Equal(t, tc.want, got, name)
	}
}

func TestRunUnderAnotherConfigurationIsRefused(t *testing.T) {
	c := DefaultConfig()
	c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.WarmupSteps, c.Eval.Tasks, c.Threads = 1, 1, 0, 0, 1
	opt := LocalOptions{Dir: filepath.Join(t.TempDir(), "run"), Log: slog.New(slog.DiscardHandler), Progress: io.Discard}
	_, err := RunLocal(t.Context(), c, opt)
	require.NoError(t, err)
	other := c
	other.Training.MaxSteps = 2
	_, err = RunLocal(t.Context(), other, opt)
	require.ErrorIs(t, err, ErrOtherConfig)
	require.ErrorContains(t, err, "training.max_steps 1, now 2")
	require.Equal(t, ExitVerdict, ExitStatus(err), "a supervisor must not try again")
	other = c
	other.Chat.CallFormat = "glm"
	_, err = RunLocal(t.Context(), other, opt)
	require.ErrorContains(t, err, "chat.call_format hermes, now glm")
	c.Threads, c.Chat.CallFormat = 2, "hermes" // what auto had chosen
	sum, err := RunLocal(t.Context(), c, opt)
	require.NoError(t, err)
	require.Equal(t, "hermes", sum.Chat.CallFormat)
}

// A node that is started again without --listen is where its peers knew it.
func TestRestartedNodeKeepsItsAddress(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	start := func() (addr string) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		require.NoError(t, RunNode(ctx, NodeOptions{
			Roles: []string{"replay"}, Dir: dir, Log: slog.New(slog.DiscardHandler),
			Ready: func(a, tokenFile string) { addr = a; require.FileExists(t, tokenFile); stop() },
		}))
		return addr
	}
	first := start()
	require.NotEmpty(t, first)
	require.Equal(t, first, start())
}

func TestFolderOfOneProcess(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	require.NoError(t, err)
	_, err = lockDir(dir)
	require.ErrorContains(t, err, "in use by another process")
	require.NoError(t, lock.Close())
	again, err := lockDir(dir)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestLastErrorOfAChild(t *testing.T) {
	logs := t.TempDir()
	p := &Proc{spec: ProcSpec{Name: "learner-0"}, logs: logs}
	for text, want := range map[string]string{
		"level=ERROR msg=x\nskein: run: a: use b\nc: use d\n": "run: a: use b\nc: use d",
		"skein: old\nlevel=INFO\nskein: new\n":                "new",
		"panic: x\n":                                          "panic: x",
	} {
		require.NoError(t, writeFile(filepath.Join(logs, "learner-0.log"), []byte(text)))
		require.Equal(t, want, p.lastError())
	}
}

func TestFullDiskIsRefusedAtTheStart(t *testing.T) {
	require.NoError(t, checkSpace(t.TempDir(), 1))
	err := checkSpace(t.TempDir(), math.MaxUint64)
	require.ErrorIs(t, err, replay.ErrDiskFull)
	require.ErrorContains(t, err, "use a --dir on another disk")
}

func TestOtherWeightsAreRefused(t *testing.T) {
	spec := replay.RunSpec{Run: "r", BaseDigest: "blake3:aa"}
	require.NoError(t, sameBase(spec, "m.gguf", "blake3:aa"))
	err := sameBase(spec, "m.gguf", "blake3:bb")
	require.ErrorContains(t, err, "m.gguf has digest blake3:bb")
	require.Equal(t, ExitVerdict, ExitStatus(err))
}
