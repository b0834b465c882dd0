package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/rollout"
)

// work is the worker's main: it loads the model and measures a job.
func work(ctx context.Context, text string) error {
	raw := []byte(text)
	if path, ok := strings.CutPrefix(text, "@"); ok {
		var err error
		if raw, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	var j job
	if err := json.Unmarshal(raw, &j); err != nil {
		return fmt.Errorf("worker: job %q: %w", text, err)
	}
	m, err := model.Open(j.Model)
	if err != nil {
		return err
	}
	defer m.Close()
	c := project.DefaultConfig()
	c.Backend, c.Dtype, c.Threads = j.Backend, j.Dtype, j.Threads
	b, err := project.OpenBackend(c, m, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	var r result
	switch j.Kind {
	case "update":
		r, err = j.update(ctx, m, b)
	case "step":
		r, err = j.step(ctx, m, b)
	default:
		r, err = j.offline(ctx, m, b)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// update is forward and backward of the job's groups, gradient in hand.
func (j job) update(ctx context.Context, m *model.Model, b model.Backend) (r result, err error) {
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: qkvo})
	if err != nil {
		return r, err
	}
	defer tr.Close()
	a, err := model.NewAdapter(m.Config, qkvo, m.Digest, 1)
	if err != nil {
		return r, err
	}
	passes, err := j.passes(ctx, m, tr, a)
	if err != nil {
		return r, err
	}
	all := slices.Concat(passes...)
	computed, trained := tokensOf(all)
	rng := rand.New(rand.NewPCG(3, 1))
	for step := range j.Steps + 1 {
		u := now()
		if err := tr.SetParams(a.Params); err != nil {
			return r, err
		}
		tr.ZeroGrad()
		for _, groups := range passes {
			if _, err := tr.Forward(ctx, groups, 1); err != nil {
				return r, err
			}
			_, n := tokensOf(groups)
			d := make([]float32, n)
			for i := range d {
				d[i] = float32(rng.NormFloat64()) / float32(trained)
			}
			if err := tr.Backward(ctx, model.Scores{LogProbs: d}); err != nil {
				return r, err
			}
		}
		wall, cpu := u.since()
		if step == 0 {
			r.First = wall
			continue
		}
		r.take(wall, cpu)
	}
	r.Tokens = float64(trained)
	r.Detail = map[string]float64{"computed": float64(computed)}
	return r, nil
}

// reward is for a digit, the right one, and few characters.
func reward(text, answer string) float64 {
	t := strings.TrimSpace(text)
	x := -0.005 * float64(len(text))
	if t != "" && t[0] >= '0' && t[0] <= '9' {
		x += .5
	}
	if t == answer {
		x += .5
	}
	return x
}

// step is a whole GRPO step: sampling through the engine, rewards, EventLogs, the
// learner's step, and the new adapter in the engine.
func (j job) step(ctx context.Context, m *model.Model, b model.Backend) (r result, err error) {
	chat, err := rollout.NewModelChat(m)
	if err != nil {
		return r, err
	}
	const maxLen = 128
	slots := len(j.Prompts) * j.Gens
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: slots, MaxLen: maxLen})
	if err != nil {
		return r, err
	}
	engine, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: slots, MaxLen: maxLen})
	if err != nil {
		return r, err
	}
	defer engine.Close()
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: allLinear})
	if err != nil {
		return r, err
	}
	defer tr.Close()
	start, err := model.NewAdapter(m.Config, allLinear, m.Digest, 1)
	if err != nil {
		return r, err
	}
	c := learner.DefaultConfig()
	c.NumGenerations, c.GroupsPerStep, c.MaxSteps, c.MaxCompletionLength = j.Gens, len(j.Prompts), j.Steps+1, j.New
	c.LearningRate, c.LRSchedulerType = 1e-4, "constant"
	l, err := learner.New(c, learner.Identity{Run: "bench", Base: m.Digest, LoRA: allLinear}, tr, start.Params)
	if err != nil {
		return r, err
	}
	r.Detail = map[string]float64{}
	for step := range j.Steps + 1 {
		u := now()
		groups, err := j.sample(ctx, engine, chat, step)
		if err != nil {
			return r, err
		}
		sampled, _ := u.since()
		res, err := l.Step(ctx, groups)
		if err != nil {
			return r, err
		}
		if err := engine.SetPolicy(l.Version(), l.Adapter()); err != nil {
			return r, err
		}
		wall, cpu := u.since()
		if step == 0 {
			r.First = wall
			continue
		}
		if r.Wall == 0 || wall < r.Wall {
			r.Detail["gen_s"], r.Detail["update_s"] = sampled, wall-sampled
			r.Tokens = res.Metrics["num_tokens"]
		}
		r.take(wall, cpu)
	}
	return r, nil
}

// sample rolls out every prompt's generations at temperature 1.
func (j job) sample(ctx context.Context, engine rollout.Engine, chat rollout.Chat, step int) ([]learner.Group, error) {
	groups := make([]learner.Group, len(j.Prompts))
	logs := make([]*eventlog.Log, len(j.Prompts)*j.Gens)
	errs := make([]error, len(logs))
	var wg sync.WaitGroup
	for k := range logs {
		p := k / j.Gens
		text, answer, _ := strings.Cut(j.Prompts[p], "\t")
		rendered, err := chat.Render([]rollout.Message{{Role: "user", Content: text}}, nil, true)
		if err != nil {
			return nil, err
		}
		prompt := chat.Encode(rendered)
		wg.Go(func() {
			logs[k], errs[k] = func() (*eventlog.Log, error) {
				g, err := engine.Generate(ctx, rollout.GenerateRequest{Prompt: prompt, MaxNew: j.New, Stop: chat.Stop(),
					Sampling: model.Sampling{Temperature: 1, Seed: uint64(step)<<32 | uint64(k)}})
				if err != nil {
					return nil, err
				}
				return j.log(groupID(step, p), k%j.Gens, prompt, g, chat, engine.Version(), answer)
			}()
		})
	}
	wg.Wait()
	for p := range groups {
		groups[p] = learner.Group{ID: groupID(step, p), Index: uint64(p), Logs: logs[p*j.Gens : (p+1)*j.Gens]}
	}
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i >= 0 {
		return nil, errs[i]
	}
	return groups, nil
}

func groupID(step, prompt int) string { return fmt.Sprint("g", step, "-", prompt) }

func (j job) log(group string, member int, prompt []int32, g rollout.Generation, chat rollout.Chat, version uint64, answer string) (*eventlog.Log, error) {
	b := eventlog.NewBuilder(eventlog.Meta{Run: "bench", Group: group, Member: uint32(member), GroupSize: uint32(j.Gens),
		Table: "train", Source: "bench", Task: group, Worker: "bench"})
	sp, err := b.AppendTokens(0, prompt, nil, eventlog.Prompt, 0)
	if err != nil {
		return nil, err
	}
	if _, err := b.Append(eventlog.NewObservation("env", "task").In(0, sp)); err != nil {
		return nil, err
	}
	if sp, err = b.AppendTokens(0, g.IDs, g.Logprobs, eventlog.Policy, version); err != nil {
		return nil, err
	}
	text := chat.Decode(g.IDs)
	if _, err := b.Append(eventlog.NewText(text).In(0, sp)); err != nil {
		return nil, err
	}
	if _, err := b.Append(eventlog.NewReward(eventlog.EpisodeScope, reward(strings.TrimSuffix(text, "<|im_end|>"), answer))); err != nil {
		return nil, err
	}
	return b.Finish(eventlog.OK, "")
}

// offline is steps of sft or dpo on rows.
func (j job) offline(ctx context.Context, m *model.Model, b model.Backend) (r result, err error) {
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: allLinear})
	if err != nil {
		return r, err
	}
	defer tr.Close()
	start, err := model.NewAdapter(m.Config, allLinear, m.Digest, 1)
	if err != nil {
		return r, err
	}
	side := func(prompt []int32, text string) data.Completion {
		ids := append(m.Tokenizer.Encode(text, true), m.Config.EOSTokenID)
		ids = ids[:min(len(ids), j.MaxLen-len(prompt))]
		return data.Completion{Tokens: ids}
	}
	var examples []data.Example
	total := 0
	for _, row := range j.Rows {
		e := data.Example{Prompt: m.Tokenizer.Encode(row.Prompt, true)}
		e.Chosen = side(e.Prompt, row.Chosen)
		total += len(e.Prompt) + len(e.Chosen.Tokens)
		if j.Kind == "dpo" {
			e.Rejected = side(e.Prompt, row.Rejected)
			total += len(e.Prompt) + len(e.Rejected.Tokens)
		}
		examples = append(examples, e)
	}
	set := data.NewSet("bench", examples, data.Order{})
	c := learner.DefaultConfig()
	for name, f := range map[string]func(){"sft": func() { c.Algorithm, c.LossType = learner.SFT, "nll" }, "dpo": func() { c.Algorithm, c.LossType, c.Beta = learner.DPO, "sigmoid", .1 }} {
		if name == j.Kind {
			f()
		}
	}
	c.BatchSize, c.MaxSteps = j.Batch, j.Steps+1
	c.LearningRate, c.LRSchedulerType = 1e-4, "constant"
	l, err := learner.New(c, learner.Identity{Run: "bench", Base: m.Digest, LoRA: allLinear, Dataset: learner.DatasetOf(set)}, tr, start.Params)
	if err != nil {
		return r, err
	}
	u := now()
	err = learner.RunOffline(ctx, l, set, learner.OfflineOptions{OnStep: func(s learner.OfflineStep) error {
		wall, cpu := u.since()
		if s.Step == 1 {
			r.First = wall
		} else {
			r.take(wall, cpu)
		}
		u = now()
		return nil
	}})
	r.Tokens = float64(total) * float64(j.Batch) / float64(len(j.Rows))
	return r, err
}
