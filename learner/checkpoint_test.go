package learner

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// trainSteps makes steps n..m on rollouts of the current policy.
func trainSteps(t testing.TB, l *Learner, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		step(t, l, sampled(t, l.Params(), l.Version(), uint64(i), "a", "b")...)
	}
}

// Six steps equal three, a save, a load in a new learner, and three.
func TestResumeIsBitIdentical(t *testing.T) {
	c := small(4)
	c.Beta, c.NumIterations, c.LRSchedulerType, c.WarmupSteps, c.WeightDecay = .05, 2, "cosine", 2, .01
	straight, _ := newLearner(t, c, noisy(1))
	trainSteps(t, straight, 0, 6)

	first, _ := newLearner(t, c, noisy(1))
	trainSteps(t, first, 0, 3)
	dir := t.TempDir()
	_, err := SaveCheckpoint(dir, first.Checkpoint())
	require.NoError(t, err)
	ck, err := LoadLatest(dir, func(err error) { t.Fatal(err) })
	require.NoError(t, err)
	second, _ := newLearner(t, c, noisy(99))
	require.NoError(t, second.Restore(ck))
	trainSteps(t, second, 3, 6)

	require.Equal(t, straight.Params(), second.Params())
	a, err := straight.Checkpoint().Encode()
	require.NoError(t, err)
	b, err := second.Checkpoint().Encode()
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b))
	require.NotEqual(t, first.Params(), second.Params())
}

func TestCheckpointRoundTripIsDeterministic(t *testing.T) {
	l, _ := newLearner(t, small(4), noisy(1))
	trainSteps(t, l, 0, 2)
	l.lease, l.epoch, l.cursor = 7, 1, 2
	c := l.Checkpoint()
	a, err := c.Encode()
	require.NoError(t, err)
	got, err := DecodeCheckpoint(a)
	require.NoError(t, err)
	require.Equal(t, c, got)
	b, err := got.Encode()
	require.NoError(t, err)
	require.Equal(t, a, b)
	d, err := c.Digest()
	require.NoError(t, err)
	require.Contains(t, d, "blake3:")
	c.M = c.M[1:]
	_, err = c.Encode()
	require.ErrorIs(t, err, ErrCheckpoint)
}

func TestDamagedCheckpointIsRefused(t *testing.T) {
	l, _ := newLearner(t, small(4), noisy(1))
	good, err := l.Checkpoint().Encode()
	require.NoError(t, err)
	for i := 0; i < len(good); i += 7 {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		_, err := DecodeCheckpoint(bad)
		require.ErrorIs(t, err, ErrCheckpoint, "byte %d", i)
		_, err = DecodeCheckpoint(good[:i])
		require.ErrorIs(t, err, ErrCheckpoint, "cut at %d", i)
	}
}

func FuzzDecodeCheckpoint(f *testing.F) {
	l, _ := newLearner(f, small(4), noisy(1))
	good, err := l.Checkpoint().Encode()
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(checkpointMagic + "\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := DecodeCheckpoint(data)
		if err != nil {
			require.ErrorIs(t, err, ErrCheckpoint)
			return
		}
		again, err := c.Encode()
		require.NoError(t, err)
		back, err := DecodeCheckpoint(again)
		require.NoError(t, err)
		require.Equal(t, c, back)
	})
}

// cases/training.tsv resume: "half-written checkpoint chosen as latest".
func TestCaseResumeHalfWrittenCheckpointIsIgnored(t *testing.T) {
	dir := t.TempDir()
	l, _ := newLearner(t, small(4), nil)
	none, err := LoadLatest(filepath.Join(dir, "nothing"), nil)
	require.NoError(t, err)
	require.Nil(t, none)
	var paths []string
	for i := range 3 {
		trainSteps(t, l, i, i+1)
		p, err := SaveCheckpoint(dir, l.Checkpoint())
		require.NoError(t, err)
		paths = append(paths, p)
	}
	require.NoError(t, os.Remove(filepath.Join(paths[2], sealFile)))
	var warned []error
	ck, err := LoadLatest(dir, func(err error) { warned = append(warned, err) })
	require.NoError(t, err)
	require.Equal(t, uint64(2), ck.Step)
	require.Len(t, warned, 1)
	require.ErrorContains(t, warned[0], "step-00000003 is not sealed (half-written)")
	// a sealed one whose bytes were damaged is passed over too
	data, err := os.ReadFile(filepath.Join(paths[1], stateFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(paths[1], stateFile), data[:len(data)-1], 0o600))
	warned = nil
	ck, err = LoadLatest(dir, func(err error) { warned = append(warned, err) })
	require.NoError(t, err)
	require.Equal(t, uint64(1), ck.Step)
	require.Len(t, warned, 2)
	// saving again mends it
	_, err = SaveCheckpoint(dir, l.Checkpoint())
	require.NoError(t, err)
	ck, err = LoadLatest(dir, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(3), ck.Step)
}

// cases/training.tsv resume: "resume with another dataset silently skips its
// first N rows".
func TestCaseResumeOtherDatasetOrBaseIsRefusedByName(t *testing.T) {
	l, _ := newLearner(t, small(4), nil)
	ck := l.Checkpoint()
	for name, tc := range map[string]struct {
		change func(*Identity)
		want   string
	}{
		"dataset": {func(i *Identity) { i.Dataset.Name = "gsm8k" }, `dataset is "toy", this run has "gsm8k"`},
		"content": {func(i *Identity) { i.Dataset.Digest = "d2" }, `dataset digest is "d1", this run has "d2"`},
		"base":    {func(i *Identity) { i.Base = "blake3:other" }, `base is "blake3:base", this run has "blake3:other"`},
		"run":     {func(i *Identity) { i.Run = "s" }, `run is "r", this run has "s"`},
		"lora":    {func(i *Identity) { i.LoRA.Rank = 2 }, "use the same lora settings"},
		"full":    {func(i *Identity) { i.Full = true }, "use the same lora settings"},
	} {
		t.Run(name, func(t *testing.T) {
			id := identity()
			tc.change(&id)
			o, err := New(small(4), id, newBandit(vocab), make([]float32, vocab*vocab))
			require.NoError(t, err)
			err = o.Restore(ck)
			require.ErrorIs(t, err, ErrCheckpoint)
			require.ErrorContains(t, err, tc.want)
		})
	}
	o, err := New(small(4), identity(), newBandit(3), make([]float32, 9))
	require.NoError(t, err)
	require.ErrorContains(t, o.Restore(ck), "36 parameters, the trainer 9")
}

func TestDiffConfigNamesWhatChanged(t *testing.T) {
	a := DefaultConfig()
	b := a
	require.Empty(t, DiffConfig(a, b))
	require.Equal(t, a.Digest(), b.Digest())
	b.LearningRate = 2
	b.Delta = r(1.5)
	require.Equal(t, []string{"delta: unset -> 1.5", "learning_rate: 0.000001 -> 2"}, DiffConfig(a, b))
	require.NotEqual(t, a.Digest(), b.Digest())
}
