package project

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// rowsConfig is the recipe of an algorithm, with paths from this folder.
func rowsConfig(t testing.TB, algorithm string, sets ...string) Config {
	t.Helper()
	file := map[string]string{learner.SFT: "demonstrations", learner.DPO: "pairs", learner.Reward: "pairs", learner.KTO: "verdicts", learner.BCO: "verdicts"}[algorithm]
	c, notes, err := LoadRecipe("store-"+algorithm, append([]string{"data.train=../testdata/recipes/" + file + ".jsonl"}, sets...))
	require.NoError(t, err)
	require.Empty(t, notes)
	return c
}

func rowsOptions(dir string, out io.Writer) LocalOptions {
	return LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: out}
}

// Every recipe trains the embedded model in seconds, improves what it is meant
// to, and leaves an adapter that peft's format reads back.
func TestRecipesTrainOnFiles(t *testing.T) {
	for _, algorithm := range learner.OfflineAlgorithms() {
		t.Run(algorithm, func(t *testing.T) {
			dir := t.TempDir()
			c := rowsConfig(t, algorithm, "training.save_steps=100")
			var out bytes.Buffer
			sum, err := TrainRows(t.Context(), c, rowsOptions(dir, &out))
			require.NoError(t, err)
			require.Less(t, sum.EvalLast["eval_loss"], .8*sum.EvalFirst["eval_loss"], "held-out loss")
			for name, want := range map[string]string{learner.DPO: "eval_rewards/accuracies", learner.Reward: "eval_accuracy"} {
				if name == algorithm {
					require.Less(t, sum.EvalFirst[want], sum.EvalLast[want])
					require.Greater(t, sum.EvalLast[want], .9)
				}
			}
			require.Equal(t, uint64(15), sum.Steps)
			require.Contains(t, out.String(), "step   15/15")
			require.Contains(t, sum.Table(), "eval_loss")

			m, err := OpenModel(c.Model)
			require.NoError(t, err)
			open := model.LoadAdapter
			if algorithm == learner.Reward {
				open = model.LoadScoreAdapter
			}
			a, err := open(filepath.Join(dir, adapterDir), m.Config)
			require.NoError(t, err)
			require.Equal(t, sum.AdapterDigest, a.Digest())
			require.Len(t, a.LoRA.Targets, 7, "all-linear is resolved")

			var saved RowsSummary
			js, err := os.ReadFile(filepath.Join(dir, "summary.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(js, &saved))
			require.Equal(t, sum.Last, saved.Last)
			resolved, _, err := Load(filepath.Join(dir, configFile), nil)
			require.NoError(t, err)
			require.Equal(t, c, resolved)

			// again: nothing is left to do, and the outcome is the same
			again, err := TrainRows(t.Context(), c, rowsOptions(dir, io.Discard))
			require.NoError(t, err)
			require.Equal(t, sum.AdapterDigest, again.AdapterDigest)
			require.Equal(t, sum.EvalLast, again.EvalLast)
		})
	}
}

// stopper cancels a context after a line of progress.
type stopper struct {
	after  string
	cancel context.CancelFunc
}

func (s stopper) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.after) {
		s.cancel()
	}
	return len(p), nil
}

// A training that is stopped again and again, also with its last lines lost,
// ends where one that never stopped does, with the same metrics.
func TestTrainRowsGoesOn(t *testing.T) {
	c := rowsConfig(t, learner.BCO, "training.save_steps=4")
	straight := t.TempDir()
	want, err := TrainRows(t.Context(), c, rowsOptions(straight, io.Discard))
	require.NoError(t, err)

	dir := t.TempDir()
	for _, at := range []int{1, 4, 9} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := TrainRows(ctx, c, rowsOptions(dir, stopper{fmt.Sprintf("step %4d/", at), cancel}))
		cancel()
		require.ErrorIs(t, err, context.Canceled)
	}
	// what a killed life leaves: lines after the last checkpoint, and half a line
	f, err := os.OpenFile(filepath.Join(dir, metricsFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"step":11,"epoch":1,"metrics":{"loss":77}}` + "\n" + `{"step":12,"ep`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	got, err := TrainRows(t.Context(), c, rowsOptions(dir, io.Discard))
	require.NoError(t, err)
	require.Equal(t, want.AdapterDigest, got.AdapterDigest, "bit for bit")
	losses := func(dir string) (out []float64) {
		points, err := readRowsLog(filepath.Join(dir, metricsFile))
		require.NoError(t, err)
		for _, p := range points {
			for _, name := range []string{"loss", "eval_loss"} {
				if x, ok := p.Metrics[name]; ok {
					out = append(out, x)
				}
			}
		}
		return out
	}
	require.Equal(t, losses(straight), losses(dir))

	// another configuration, dataset or seed is refused by name
	for set, want := range map[string]string{
		"training.beta=0.3": "training.beta: 0.1 -> 0.3", "data.shuffle=false": "dataset digest",
		"run=x": "holds run", "lora.rank=8": "adapter is",
	} {
		other := rowsConfig(t, learner.BCO, "training.save_steps=4", set)
		_, err := TrainRows(t.Context(), other, rowsOptions(dir, io.Discard))
		require.ErrorContains(t, err, want)
	}
	// and so is the folder for something else
	_, err = RunLocal(t.Context(), DefaultConfig(), rowsOptions(dir, io.Discard))
	require.ErrorContains(t, err, "trained on files")
}

// An adapter of one training is where the next starts: sft, then dpo, whose
// reference it is.
func TestTrainRowsStartsFromAnAdapter(t *testing.T) {
	first := t.TempDir()
	_, err := TrainRows(t.Context(), rowsConfig(t, learner.SFT, "training.max_steps=2"), rowsOptions(first, io.Discard))
	require.NoError(t, err)
	start := "start_adapter=" + filepath.Join(first, adapterDir)
	sum, err := TrainRows(t.Context(), rowsConfig(t, learner.DPO, "training.max_steps=2", start), rowsOptions(t.TempDir(), io.Discard))
	require.NoError(t, err)
	require.Zero(t, sum.First["rewards/chosen"])
	_, err = TrainRows(t.Context(), rowsConfig(t, learner.Reward, "training.max_steps=2", start), rowsOptions(t.TempDir(), io.Discard))
	require.NoError(t, err)
	_, err = TrainRows(t.Context(), rowsConfig(t, learner.DPO, start, "lora.rank=4"), rowsOptions(t.TempDir(), io.Discard))
	require.ErrorContains(t, err, "has rank 16")
	_, err = TrainRows(t.Context(), rowsConfig(t, learner.DPO, "start_adapter=none"), rowsOptions(t.TempDir(), io.Discard))
	require.ErrorContains(t, err, "start_adapter none")

	// a base with another digest
	path := filepath.Join(first, adapterDir)
	m, err := OpenModel(EmbeddedTiny)
	require.NoError(t, err)
	a, err := model.LoadAdapter(path, m.Config)
	require.NoError(t, err)
	a.BaseDigest = "blake3:other"
	require.NoError(t, a.Save(path, m.Config, "other"))
	_, err = TrainRows(t.Context(), rowsConfig(t, learner.DPO, start), rowsOptions(t.TempDir(), io.Discard))
	require.ErrorIs(t, err, model.ErrAdapter)
}

func TestTrainRowsBadInput(t *testing.T) {
	write := func(lines ...string) string {
		path := filepath.Join(t.TempDir(), "d.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
		return path
	}
	for name, c := range map[string]struct {
		algorithm string
		sets      []string
		want      string
	}{
		"missing columns":  {learner.DPO, []string{"data.train=" + write(`{"question":"a"}`)}, "columns found: question"},
		"other columns":    {learner.SFT, []string{"data.train=../testdata/recipes/pairs.jsonl"}, "read as preference"},
		"empty":            {learner.SFT, []string{"data.train=" + write("")}, "no rows to train"},
		"bad row":          {learner.KTO, []string{"data.train=" + write(`{"prompt":"a","completion":"b","label":true}`, `{"prompt":"a"}`)}, "d.jsonl:2"},
		"all too long":     {learner.SFT, []string{"data.max_length=20"}, "48 of them too long for max_length 20"},
		"one row to split": {learner.SFT, []string{"data.train=" + write(`{"text":"a"}`), "data.curriculum={}"}, "eval_split"},
		"one prompt":       {learner.KTO, []string{"data.eval_split=0", "data.train=" + write(`{"prompt":"a","completion":"b","label":true}`, `{"prompt":"a","completion":"c","label":false}`), "training.warmup_steps=0"}, "same prompt"},
		"no model":         {learner.SFT, []string{"model=embedded:none"}, "not in this binary"},
		"target":           {learner.SFT, []string{"lora.targets=[qkv_proj]"}, "qkv_proj"},
		"system only":      {learner.SFT, []string{"data.train=" + write(`{"messages":[{"role":"system","content":"a"}]}`), "data.curriculum={}"}, `the last message is of role "system"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			_, err := TrainRows(t.Context(), rowsConfig(t, c.algorithm, c.sets...), rowsOptions(dir, io.Discard))
			require.ErrorContains(t, err, c.want)
		})
	}
	for set, want := range map[string]string{
		"data.bad_rows=maybe": "data.bad_rows: unknown", "data.eval_split=1.5": "data.eval_split", "data.mix=x": "data.mix",
		"data.train=[{path: a, wieght: 2}]": "data.train[0].wieght: unknown key: did you mean weight?", "training.loss_type=x": "training.loss_type",
		"warmup.examples=3": "warmup.examples", "data.curriculum={column: a, buckets: 0}": "curriculum.buckets", "lora.targets=[q_proj, nope]": "lora.targets: unknown projection",
		"data.train=[]": "data.train: no files", "training.algorithm=grpo": "trains on rollouts",
	} {
		_, _, err := LoadRecipe("store-dpo", []string{set})
		require.ErrorContains(t, err, want, set)
	}
	require.ErrorContains(t, onRollouts(rowsConfig(t, learner.SFT)), "use skein train sft")
}

// The algorithm decides the defaults; short forms are read.
func TestAlgorithmDefaultsAndShortForms(t *testing.T) {
	c, err := Parse([]byte("training: {algorithm: dpo, loss_type: [sigmoid, sft], loss_weights: [1, 0.5]}\ndata: {train: [a.jsonl, {path: b.jsonl, weight: 3}], eval: c.jsonl}"))
	require.NoError(t, err)
	require.Equal(t, 0.1, c.Training.Beta)
	require.Equal(t, "sigmoid+sft", c.Training.LossType)
	require.Equal(t, []data.Source{{Path: "a.jsonl"}, {Path: "b.jsonl", Weight: 3}}, c.Data.Train)
	require.Equal(t, []data.Source{{Path: "c.jsonl"}}, c.Data.Eval)
	text, err := c.YAML()
	require.NoError(t, err)
	again, err := Parse(text)
	require.NoError(t, err)
	require.Equal(t, c, again)
	other := c
	other.Data.Train = []data.Source{{Path: "a.jsonl"}, {Path: "d.jsonl", Weight: 3}}
	diffs, err := differences(c, other)
	require.NoError(t, err)
	require.Equal(t, []string{"data.train[1].path b.jsonl, now d.jsonl"}, diffs)
}

func TestPlan(t *testing.T) {
	p, err := MakePlan(t.Context(), rowsConfig(t, learner.DPO), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, uint64(15), p.Steps)
	require.Equal(t, 36, p.Data.Rows)
	require.Equal(t, 12, p.EvalRows)
	require.Positive(t, p.FLOPs)
	require.Positive(t, p.Memory.Total())
	require.LessOrEqual(t, p.MicroTokens, p.StepTokens)
	require.Contains(t, p.String(), "48 read, 0 bad")
	require.Contains(t, p.String(), "steps: 15")
}

// Rows are tokenised as rollouts tokenise: the text around a turn is the
// template's, calls are written as the template writes them, and the turn ends
// with the stop token.
func TestDataChat(t *testing.T) {
	m, err := OpenModel(EmbeddedTiny)
	require.NoError(t, err)
	c := rowsConfig(t, learner.SFT, "data.eval_split=0", "data.shuffle=false")
	set, _, _, err := loadData(t.Context(), c, m, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	e := set.Rows()[0]
	prompt, rest := m.Tokenizer.Decode(e.Prompt), m.Tokenizer.Decode(e.Chosen.Tokens)
	require.True(t, strings.HasPrefix(prompt, "<|im_start|>system\ntools: price stock calc<|im_end|>\n<|im_start|>system\nYou run a shop."), prompt)
	require.True(t, strings.HasSuffix(prompt, "<|im_end|>\n<|im_start|>assistant\n"), prompt)
	require.True(t, strings.HasPrefix(rest, `<tool_call>{"name":"price","arguments":{"item"`), rest)
	require.True(t, strings.HasSuffix(rest, "<|im_end|>"), rest)
	require.Contains(t, rest, "<|im_start|>tool\n")
	// the calls weigh 2, tool results nothing, the answer 1
	at := 0
	for _, part := range []struct {
		until  string
		weight float32
	}{{"<|im_end|>", 2}, {"<|im_start|>assistant\n", 0}, {"<|im_end|>", 2}, {"<|im_start|>assistant\n", 0}, {"<|im_end|>", 1}} {
		seen := ""
		for ; at < len(e.Chosen.Tokens) && !strings.HasSuffix(seen, part.until); at++ {
			seen += m.Tokenizer.Decode(e.Chosen.Tokens[at : at+1])
			require.Equal(t, part.weight, e.Chosen.Weights[at], "token %d of %q", at, seen)
		}
	}
	require.Equal(t, len(e.Chosen.Tokens), at)
}
