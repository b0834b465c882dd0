package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
)

// manyRollouts is a run on rollouts of two steps, on policy, so that its numbers
// depend on nothing but its configuration.
func manyRollouts(name string, seed uint64, rank int) Config {
	c := smallRun(name, seed)
	c.LoRA.Rank, c.LoRA.Alpha = rank, 2*float64(rank)
	c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.Beta = 2, 2, 0.1
	c.Limits.SaveTotalLimit = 2
	return c
}

func manyRows(t *testing.T, algorithm, name string) Config {
	c := rowsConfig(t, algorithm, "training.max_steps=3", "training.eval_steps=100", "training.save_steps=1")
	c.Run = name
	return c
}

// adapterOfRun is the digest of what a run trained.
func adapterOfRun(t *testing.T, o ManyOutcome) string {
	t.Helper()
	if o.Rows != nil {
		require.NotEmpty(t, o.Rows.AdapterDigest)
		return o.Rows.AdapterDigest
	}
	st, err := OpenStore(t.Context(), StoreOptions{Dir: o.Dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer st.Close()
	p, err := st.Latest(t.Context(), o.Run)
	require.NoError(t, err)
	require.Equal(t, uint64(2), p.Version)
	return p.Adapter
}

func trainAlone(t *testing.T, c Config) ManyOutcome {
	t.Helper()
	dir := filepath.Join(t.TempDir(), c.Run)
	out, err := trainOne(t.Context(), ManyRun{c, dir}, rowsOptions(dir, io.Discard))
	require.NoError(t, err)
	return out
}

// Two runs on rollouts, of unlike adapters, and two on files train at once over
// one base: each ends with the adapter it has when it trains alone, to the bit. A
// run that fails at its start is named and stops none of them.
func TestManyRunsAreEachAsAlone(t *testing.T) {
	good := []Config{manyRollouts("a", 1, 2), manyRollouts("b", 2, 4), manyRows(t, learner.SFT, "c"), manyRows(t, learner.DPO, "d")}
	bad := manyRows(t, learner.SFT, "broken")
	bad.Data.Train[0].Path = "no-such-file.jsonl"
	dir := t.TempDir()
	var runs []ManyRun
	for _, c := range append([]Config{bad}, good...) {
		runs = append(runs, ManyRun{c, filepath.Join(dir, c.Run)})
	}
	var said bytes.Buffer
	out, err := TrainMany(t.Context(), runs, rowsOptions("", &said))
	require.ErrorContains(t, err, "run broken: ")
	require.ErrorContains(t, err, "no-such-file.jsonl")
	require.Equal(t, StateFailed, out[0].State)
	require.Contains(t, out[0].Error, "no-such-file.jsonl")
	for i, c := range good {
		o := out[i+1]
		require.Equal(t, StateFinished, o.State, "%s: %s", o.Run, o.Error)
		require.Equal(t, adapterOfRun(t, trainAlone(t, c)), adapterOfRun(t, o), "run %s", c.Run)
		require.Contains(t, said.String(), "\n"+c.Run+": ")
		require.FileExists(t, filepath.Join(o.Dir, "summary.json"))
	}
	require.Contains(t, said.String(), "broken: failed: ")
}

// One of two runs is stopped by the file in its folder while the other goes on;
// started again it goes on from there.
func TestManyRunsStopAndGoOn(t *testing.T) {
	a, b := manyRows(t, learner.SFT, "a"), manyRows(t, learner.DPO, "b")
	a.Training.MaxSteps = 400
	dir := t.TempDir()
	runs := []ManyRun{{a, filepath.Join(dir, "a")}, {b, filepath.Join(dir, "b")}}
	seen := teller(func(line string) {
		if strings.HasPrefix(line, "a: step    1/") {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "a", StopFile), nil, 0o600))
		}
	})
	out, err := TrainMany(t.Context(), runs, rowsOptions("", seen))
	require.NoError(t, err)
	require.Equal(t, StateStopped, out[0].State)
	require.NoFileExists(t, filepath.Join(dir, "a", StopFile))
	require.Equal(t, StateFinished, out[1].State)
	at := out[0].Rows.Steps
	require.Greater(t, at, uint64(0))
	require.Less(t, at, uint64(400))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	again := teller(func(line string) {
		if strings.HasPrefix(line, fmt.Sprintf("a: step %4d/", at+1)) {
			cancel()
		}
	})
	out, err = TrainMany(ctx, runs, rowsOptions("", again))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, StateStopped, out[0].State)
	require.Greater(t, out[0].Rows.Steps, at, "it went on")
}

func TestManyRunsAreCheckedFirst(t *testing.T) {
	a := manyRows(t, learner.SFT, "a")
	opt := rowsOptions("", io.Discard)
	opt.Metrics = "127.0.0.1:0"
	base := a
	base.Run = BaseRun("a")
	broken := a
	broken.Run, broken.Share = "x", -1
	_, err := TrainMany(t.Context(), []ManyRun{{a, "one"}, {a, "./one"}, {base, "two"}, {broken, "three"}}, opt)
	for _, want := range []string{"metrics are those of one run", `"a" is the name of two runs`, "would share the folder", "is evaluated: choose another", "share: -1"} {
		require.ErrorContains(t, err, want)
	}
	require.NoDirExists(t, "one")
}

// However many runs stand on a model, it is opened once and on the device once.
func TestBasesAreShared(t *testing.T) {
	b := newBases()
	log := slog.New(slog.DiscardHandler)
	var all []*parts
	for i := range 3 {
		p, err := openPartsOn(b, smallRun(fmt.Sprint("r", i), 1), log)
		require.NoError(t, err)
		all = append(all, p)
		require.Same(t, all[0].base, p.base)
		require.Same(t, all[0].model, p.model)
	}
	other := smallRun("other", 1)
	other.Dtype = "bf16"
	require.NotEqual(t, baseKey(other, "x"), baseKey(smallRun("r", 1), "x"))
	require.NoError(t, errors.Join(all[0].Close(), all[1].Close()))
	require.Len(t, b.backends, 1)
	require.NoError(t, all[2].Close())
	require.Empty(t, b.backends)
	require.Empty(t, b.models)
}
