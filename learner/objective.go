package learner

import (
	"github.com/skein-rl/skein/learner/data"
)

// objective is what an offline algorithm is, beside the driver that all share.
// reset, then begin, loss for parts that cover the batch, metrics; done follows
// when the step was made.
type objective interface {
	// sequences are what the trainer computes of a row, in a fixed order.
	sequences(e *data.Example) []sequence
	// reference says that rows need the reference's log-probabilities.
	reference() bool
	// whole says that the loss needs the scores of all rows of a step at once.
	whole() bool
	// reset forgets the batch before.
	reset()
	// begin settles what the loss divides by, before any score of the batch.
	begin(r *rowRun, b *offBatch) error
	// loss is the share of the rows named by part; it fills their derivatives.
	// Several parts may be computed at a time. tally adds a part to the metrics; it
	// is called in the parts' order.
	loss(b *offBatch, part []int) (x float64, tally func(), err error)
	metrics() map[string]float64
	// done keeps what the step changed beside the parameters.
	done()
}

func newObjective(l *Learner) objective {
	o := objectiveOf(l.cfg)
	if b, ok := o.(*bcoObjective); ok {
		b.l = l
	}
	return o
}

func objectiveOf(c Config) objective {
	switch c.rowLoss() {
	case DPO:
		return &dpoObjective{cfg: c.dpo()}
	case KTO:
		return &ktoObjective{cfg: c.kto()}
	case BCO:
		return &bcoObjective{cfg: c.bco()}
	case Reward:
		return &rewardObjective{cfg: c.reward()}
	}
	return &sftObjective{kind: c.LossType, smoothing: c.LabelSmoothing}
}
