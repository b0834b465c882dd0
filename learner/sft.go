package learner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/model"
)

// SFTRow is one supervised sequence in token ids.
type SFTRow struct {
	Prompt []int32
	Tokens []int32
	// Weights per token of Tokens, 0 = not trained; nil = 1 everywhere.
	Weights []float32
}

// trained counts the tokens with a weight above 0.
func (r SFTRow) trained() int {
	if r.Weights == nil {
		return len(r.Tokens)
	}
	n := 0
	for _, w := range r.Weights {
		if w > 0 {
			n++
		}
	}
	return n
}

// SFTDataset identifies rows by content, for Identity.
func SFTDataset(name string, rows []SFTRow) Dataset {
	h := blake3.New(32, nil)
	var buf []byte
	u32 := func(x uint32) { buf = binary.LittleEndian.AppendUint32(buf, x) }
	for _, r := range rows {
		buf = buf[:0]
		for _, ids := range [][]int32{r.Prompt, r.Tokens} {
			u32(uint32(len(ids)))
			for _, id := range ids {
				u32(uint32(id))
			}
		}
		u32(uint32(len(r.Weights)))
		for _, w := range r.Weights {
			u32(math.Float32bits(w))
		}
		h.Write(buf)
	}
	return Dataset{Name: name, Digest: fmt.Sprintf("blake3:%x", h.Sum(nil))}
}

// SFTProgress is what one optimizer step did.
type SFTProgress struct {
	Step, Steps uint64 // of the whole training
	Epoch       uint64 // from 0
	Loss        float64
	LR          float64
	GradNorm    float64
	Rows        int
	Tokens      int // trained tokens
	Elapsed     time.Duration
}

// SFTOptions are the rare parts of RunSFT.
type SFTOptions struct {
	// Progress sees every step; an error from it stops the training there.
	Progress func(SFTProgress) error
	// Dir receives sealed checkpoints every SaveEvery steps and at the end;
	// "" = none.
	Dir       string
	SaveEvery uint64
}

// RunSFT trains rows for NumTrainEpochs epochs (at most MaxSteps steps when
// that is set) from where the learner stands: a restored one goes on with the
// same next batch. The order of an epoch is a pure function of (Seed, epoch).
//
// Each step minimises Σ w·NLL / Σ w over its rows (package loss). It works for
// LoRA and full trainers. On ctx's end it returns ctx's error after saving.
func RunSFT(ctx context.Context, l *Learner, rows []SFTRow, opt SFTOptions) error {
	if l.cfg.Algorithm != SFT {
		return fmt.Errorf("learner: algorithm: RunSFT trains %q, the configuration says %q", SFT, l.cfg.Algorithm)
	}
	if err := checkSFTRows(rows); err != nil {
		return err
	}
	total := l.sftSteps(rows)
	began := time.Now()
	save := func() error {
		if opt.Dir == "" {
			return nil
		}
		_, err := SaveCheckpoint(opt.Dir, l.Checkpoint())
		return err
	}
	for l.step < total {
		if err := ctx.Err(); err != nil {
			return errors.Join(err, save())
		}
		order := l.sftOrder(len(rows), l.epoch)
		batch := sftBatch(rows, order[l.cursor:], l.cfg.BatchTokens)
		p, err := l.sftStep(ctx, rows, batch, total)
		if err != nil {
			if ctx.Err() != nil {
				err = errors.Join(err, save())
			}
			return err
		}
		p.Elapsed = time.Since(began)
		if opt.Progress != nil {
			if err := opt.Progress(p); err != nil {
				return errors.Join(err, save())
			}
		}
		if opt.SaveEvery > 0 && l.step%opt.SaveEvery == 0 {
			if err := save(); err != nil {
				return err
			}
		}
	}
	return save()
}

// checkSFTRows refuses rows that cannot be trained, with their count.
func checkSFTRows(rows []SFTRow) error {
	if len(rows) == 0 {
		return fmt.Errorf("learner: sft: no rows")
	}
	reasons := map[string]int{}
	first := -1
	for i, r := range rows {
		why := ""
		switch {
		case len(r.Prompt) == 0:
			why = "no_prompt"
		case r.Weights != nil && len(r.Weights) != len(r.Tokens):
			why = "weights_length"
		case slices.ContainsFunc(r.Weights, func(w float32) bool { return !(w >= 0) || math.IsInf(float64(w), 0) }):
			why = "weight_invalid"
		case r.trained() == 0:
			why = "no_trained_tokens"
		default:
			continue
		}
		reasons[why]++
		if first < 0 {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	n := 0
	for _, k := range reasons {
		n += k
	}
	return fmt.Errorf("learner: sft: %d of %d rows cannot be trained (%s), the first is row %d; drop or mend them", n, len(rows), histogram(reasons), first)
}

// sftOrder shuffles the rows of an epoch.
func (l *Learner) sftOrder(n int, epoch uint64) []int {
	return rand.New(rand.NewPCG(l.cfg.Seed, epoch)).Perm(n)
}

// sftBatch takes rows while they fit; at least one.
func sftBatch(rows []SFTRow, order []int, tokens int) []int {
	n, sum := 0, 0
	for _, i := range order {
		sum += len(rows[i].Prompt) + len(rows[i].Tokens)
		if n > 0 && sum > tokens {
			break
		}
		n++
	}
	return order[:n]
}

// sftSteps counts the optimizer steps of the whole training.
func (l *Learner) sftSteps(rows []SFTRow) uint64 {
	steps := uint64(0)
	for e := range l.cfg.NumTrainEpochs {
		order := l.sftOrder(len(rows), uint64(e))
		for len(order) > 0 {
			order = order[len(sftBatch(rows, order, l.cfg.BatchTokens)):]
			steps++
		}
	}
	if limit := uint64(l.cfg.MaxSteps); limit > 0 {
		steps = min(steps, limit)
	}
	return steps
}

func (l *Learner) sftStep(ctx context.Context, rows []SFTRow, batch []int, total uint64) (SFTProgress, error) {
	seqs := make([][]sequence, len(batch))
	lr := make([]loss.SFTRow, len(batch))
	p := SFTProgress{Step: l.step + 1, Steps: total, Epoch: l.epoch, Rows: len(batch)}
	for k, i := range batch {
		seqs[k], lr[k] = rows[i].sequence()
		p.Tokens += len(lr[k].LogP)
	}
	weight := loss.SFTWeight(lr)
	if err := l.tr.SetParams(l.params); err != nil {
		return p, err
	}
	l.tr.ZeroGrad()
	for _, m := range pack(seqs, func(int) bool { return true }, l.cfg.TokenBudget) {
		sc, err := l.tr.Forward(ctx, m.groups, 1)
		if err := checkScores(m, sc, err); err != nil {
			return p, fmt.Errorf("learner: sft step %d: %w", p.Step, err)
		}
		m.scatter(sc.LogProbs, func(k int) []float64 { return lr[k].LogP })
		ids := m.rows()
		part := make([]loss.SFTRow, len(ids))
		at := map[int]int{}
		for j, k := range ids {
			part[j], at[k] = lr[k], j
		}
		res, err := loss.SFT(l.cfg.LossType, part, weight)
		if err != nil {
			return p, fmt.Errorf("learner: sft step %d: %w", p.Step, errors.Join(ErrDiverged, err))
		}
		p.Loss += res.Loss
		if err := l.tr.Backward(ctx, model.Scores{LogProbs: m.gather(func(k int) []float64 { return res.DLogP[at[k]] })}); err != nil {
			return p, fmt.Errorf("learner: sft step %d: %w", p.Step, err)
		}
	}
	grad := l.tr.Grad()
	p.GradNorm = GradNorm(grad)
	if math.IsNaN(p.GradNorm) || math.IsInf(p.GradNorm, 0) {
		return p, fmt.Errorf("%w: sft step %d: gradient norm is %v", ErrDiverged, p.Step, p.GradNorm)
	}
	p.LR = l.cfg.LR(l.opt.T, int(total))
	c := l.cfg
	if err := l.opt.Update(l.params, grad, l.decay, Hyper{LR: p.LR, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Epsilon: c.AdamEpsilon, Scale: ClipScale(p.GradNorm, c.MaxGradNorm)}); err != nil {
		return p, err
	}
	l.step++
	l.version++
	if l.cursor += uint64(len(batch)); l.cursor == uint64(len(rows)) {
		l.epoch, l.cursor = l.epoch+1, 0
	}
	return p, nil
}

// sequence is the row for the trainer, cut after its last trained token, and
// for the loss, with room for the log-probabilities of its trained tokens.
func (r SFTRow) sequence() ([]sequence, loss.SFTRow) {
	train := make([]bool, len(r.Tokens))
	last := 0
	var w []float64
	for t := range r.Tokens {
		x := float32(1)
		if r.Weights != nil {
			x = r.Weights[t]
		}
		if x > 0 {
			train[t] = true
			w = append(w, float64(x))
			last = t
		}
	}
	s := sequence{prompt: r.Prompt, Sequence: model.Sequence{Tokens: r.Tokens[:last+1], Train: train[:last+1]}, trained: len(w)}
	return []sequence{s}, loss.SFTRow{LogP: make([]float64, len(w)), Weight: w}
}
