package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// What of an episode a reward model reads.
const (
	OfFinal      = "final"      // the task's opening and the last assistant text
	OfTrajectory = "trajectory" // the whole conversation, calls and results included
)

const defaultJudgeTimeout = time.Minute

// RewardModelConfig is a trained reward model (skein train reward) that scores
// every episode of a run: a component of the reward, which training.reward_weights
// weighs beside the task's own, "task".
type RewardModelConfig struct {
	// Name of the component.
	Name string `yaml:"name"`
	// Path is the folder of the training, or of its adapter. It is read when the run
	// is created, and stored with it: workers need it no more.
	Path string `yaml:"path,omitempty"`
	// Digest of the adapter ("blake3:..."): what Path must hold; without Path, that of
	// a blob the store has. The run's record has it in any case.
	Digest string `yaml:"digest,omitempty"`
	// Model is the base the adapter was trained over; "" = the run's.
	Model string `yaml:"model,omitempty"`
	// Of says what is scored: "final" (the default), or "trajectory", which a reward
	// model trained on whole trajectories wants.
	Of string `yaml:"of,omitempty"`
	// Timeout bounds one scoring, waiting included; 0 = 1m.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

func (c Config) validateRewardModels(bad func(field string, value any, remedy string)) {
	if len(c.RewardModels) == 0 {
		return
	}
	if c.Training.Offline() {
		bad("reward_models", "set", fmt.Sprintf("%s trains on rows, which have no rollouts to score: leave it out", c.Training.Algorithm))
		return
	}
	names := []string{rollout.TaskComponent}
	for i, r := range c.RewardModels {
		at := fmt.Sprintf("reward_models[%d].", i)
		switch _, weighed := c.Training.RewardWeights[r.Name]; {
		case r.Name == "" || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "":
			bad(at+"name", fmt.Sprintf("%q", r.Name), "name the component with letters, digits, '-', '_' and '.'")
		case slices.Contains(names, r.Name):
			bad(at+"name", r.Name, "another component has this name (the task's own is "+rollout.TaskComponent+"); choose another")
		case !weighed:
			bad(at+"name", r.Name, fmt.Sprintf("training.reward_weights gives it no weight: add it, e.g. {%s: 1, %s: 0.1} (0 records it without training on it)", rollout.TaskComponent, r.Name))
		}
		names = append(names, r.Name)
		if r.Path == "" && r.Digest == "" {
			bad(at+"path", `""`, "give the folder of the reward model, or the digest of one in the store")
		}
		if r.Digest != "" && !strings.HasPrefix(r.Digest, "blake3:") {
			bad(at+"digest", r.Digest, `give it as skein train reward prints it, "blake3:..."`)
		}
		if !slices.Contains([]string{"", OfFinal, OfTrajectory}, r.Of) {
			bad(at+"of", fmt.Sprintf("%q", r.Of), fmt.Sprintf("use %q or %q", OfFinal, OfTrajectory))
		}
		if r.Timeout < 0 {
			bad(at+"timeout", r.Timeout, "use a positive duration such as 30s, or 0 for the default")
		}
	}
	for name := range c.Training.RewardWeights {
		if !slices.Contains(names, name) {
			bad("training.reward_weights."+name, c.Training.RewardWeights[name], "no component has this name; there are "+strings.Join(names, ", "))
		}
	}
}

// storeRewardModels puts the reward models' adapters into the store and their
// digests into the configuration that becomes the run's record.
func (p *parts) storeRewardModels(ctx context.Context, st replay.Store) error {
	p.cfg.RewardModels = slices.Clone(p.cfg.RewardModels)
	for i := range p.cfg.RewardModels {
		r := &p.cfg.RewardModels[i]
		if err := p.storeRewardModel(ctx, st, r); err != nil {
			return fmt.Errorf("project: reward_models[%d] %s: %w", i, r.Name, err)
		}
	}
	return nil
}

func (p *parts) storeRewardModel(ctx context.Context, st replay.Store, r *RewardModelConfig) error {
	m, own, err := p.rewardBase(*r)
	if err != nil {
		return err
	}
	defer own()
	if r.Path == "" {
		_, err := fetchRewardModel(ctx, st, *r, m)
		return err
	}
	path := r.Path
	if sub := filepath.Join(path, adapterDir); isDir(sub) {
		path = sub
	}
	a, err := model.LoadScoreAdapter(path, m.Config)
	if err != nil {
		return fmt.Errorf("path %s: %w (a reward model is what skein train reward leaves)", path, err)
	}
	if a.BaseDigest == "" {
		a.BaseDigest = m.Digest // made by another tool: taken at its word
	}
	if err := a.CheckBase(m.Digest); err != nil {
		return fmt.Errorf("path %s: %w: set model to the base it was trained over", path, err)
	}
	d := a.Digest()
	if r.Digest != "" && r.Digest != d {
		return fmt.Errorf("path %s has digest %s, the configuration says %s: give the right folder, or leave digest out", path, d, r.Digest)
	}
	if r.Digest, err = st.PutBlob(ctx, a.Encode()); err != nil {
		return fmt.Errorf("storing it: %w", err)
	}
	return nil
}

func isDir(path string) bool {
	s, err := os.Stat(path)
	return err == nil && s.IsDir()
}

// rewardBase opens a reward model's base; own closes it, unless it is the run's.
func (p *parts) rewardBase(r RewardModelConfig) (m *model.Model, own func() error, err error) {
	if r.Model == "" || r.Model == p.cfg.Model {
		return p.model, func() error { return nil }, nil
	}
	if m, err = OpenModel(r.Model); err != nil {
		return nil, nil, err
	}
	return m, m.Close, nil
}

// fetchRewardModel gets an adapter by its digest and checks that it is a reward
// model over a base.
func fetchRewardModel(ctx context.Context, st replay.Store, r RewardModelConfig, base *model.Model) (*model.Adapter, error) {
	blob, err := st.GetBlob(ctx, r.Digest)
	if errors.Is(err, replay.ErrNotFound) {
		return nil, fmt.Errorf("digest %s: the store has no such blob: give path too, from which it is stored: %w", r.Digest, err)
	}
	if err != nil {
		return nil, fmt.Errorf("digest %s: %w", r.Digest, err)
	}
	a, err := model.DecodeAdapter(blob)
	if err == nil {
		err = a.CheckBase(base.Digest)
	}
	if err == nil {
		err = a.Check(base.Config)
	}
	if err == nil && a.Score == nil {
		err = fmt.Errorf("%w: it has no value head, so it is no reward model", model.ErrAdapter)
	}
	if err != nil {
		return nil, fmt.Errorf("digest %s: %w", r.Digest, err)
	}
	return a, nil
}

// judges opens the run's reward models from the store; done frees them.
func (p *parts) judges(ctx context.Context, st replay.Store, log *slog.Logger) (out []rollout.Scorer, done func() error, err error) {
	var closers []func() error
	done = func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	models, err := p.recordedRewardModels(ctx, st)
	for i, r := range models {
		var j *rewardJudge
		if j, err = p.judge(ctx, st, r, log); err != nil {
			err = fmt.Errorf("project: reward_models[%d] %s: %w", i, r.Name, err)
			break
		}
		out, closers = append(out, j), append(closers, j.Close)
		log.Info("reward model scores episodes", "name", r.Name, "digest", r.Digest, "backend", p.cfg.Backend)
	}
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return out, done, nil
}

// recordedRewardModels are the run's, with the digests its record has.
func (p *parts) recordedRewardModels(ctx context.Context, st replay.Store) ([]RewardModelConfig, error) {
	if len(p.cfg.RewardModels) == 0 {
		return nil, nil
	}
	s, err := st.Status(ctx, p.cfg.Run)
	if err != nil {
		return nil, err
	}
	c, err := Parse(s.Spec.Config)
	if err != nil {
		return nil, fmt.Errorf("project: configuration of run %s: %w", p.cfg.Run, err)
	}
	return c.RewardModels, nil
}

// rewardJudge scores episodes with a reward model.
type rewardJudge struct {
	cfg   RewardModelConfig
	rm    *learner.RewardModel
	chat  rollout.Chat
	limit int // tokens the model reads; 0 = no limit
	done  func() error
}

var _ rollout.Scorer = (*rewardJudge)(nil)

func (p *parts) judge(ctx context.Context, st replay.Store, r RewardModelConfig, log *slog.Logger) (_ *rewardJudge, err error) {
	m, closeBase, err := p.rewardBase(r)
	if err != nil {
		return nil, err
	}
	var closers []func() error
	done := func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		return errors.Join(append(errs, closeBase())...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	a, err := fetchRewardModel(ctx, st, r, m)
	if err != nil {
		return nil, err
	}
	j := &rewardJudge{cfg: r, chat: p.chat, limit: m.Config.ContextLimit(), done: done}
	be := p.backend
	if m != p.model {
		if j.chat, err = rollout.NewModelChat(m, rollout.WithCallFormat(rollout.AutoCallFormat)); err != nil {
			return nil, fmt.Errorf("model %s: %w", r.Model, err)
		}
	}
	if m != p.model || be == nil { // nil: a server generates
		c := p.cfg
		c.Devices, c.ShardBase = 1, false // it scores on the first
		if be, err = OpenBackend(c, m, log); err != nil {
			return nil, err
		}
		closers = append(closers, be.Close)
	}
	if j.rm, err = learner.NewRewardModel(be, m.Config, a, p.cfg.Training.TokenBudget); err != nil {
		return nil, err
	}
	closers = append(closers, j.rm.Close)
	j.done = done
	return j, nil
}

// Name implements rollout.Scorer.
func (j *rewardJudge) Name() string { return j.cfg.Name }

// Timeout implements rollout.Scorer.
func (j *rewardJudge) Timeout() time.Duration {
	if j.cfg.Timeout == 0 {
		return defaultJudgeTimeout
	}
	return j.cfg.Timeout
}

// Score implements rollout.Scorer: the reward model's score of the conversation as
// its own base's chat template writes it, tokenised as its training rows were.
func (j *rewardJudge) Score(ctx context.Context, t rollout.Task, e rollout.Episode) (float64, error) {
	messages := append(rollout.Opening(t), rollout.Message{Role: "assistant", Content: e.Final})
	if j.cfg.Of == OfTrajectory {
		messages = e.Messages
	}
	ids, written, err := rollout.EncodeDemo(j.chat, t.Tools, messages)
	if err != nil {
		return 0, err
	}
	start := slices.Index(written, true)
	if j.limit > 0 && len(ids) > j.limit {
		return 0, fmt.Errorf("the conversation has %d tokens, the reward model reads %d", len(ids), j.limit)
	}
	scores, err := j.rm.Score(ctx, []learner.RewardRow{{Prompt: ids[:start], Tokens: ids[start:]}})
	if err != nil {
		return 0, err
	}
	return scores[0], nil
}

// Close frees the reward model.
func (j *rewardJudge) Close() error { return j.done() }
