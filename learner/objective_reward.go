package learner

import (
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
)

// rewardObjective is the Bradley-Terry loss of a reward model, whose score of a
// completion is the value head after its last token. A row's weight multiplies
// its pair's loss; its margin is what the scores must differ by.
type rewardObjective struct {
	cfg   preference.RewardConfig
	total float64
	stats preference.RewardStats
}

func (o *rewardObjective) sequences(e *data.Example) []sequence {
	return []sequence{endValued(e.Prompt, e.Chosen.Tokens), endValued(e.Prompt, e.Rejected.Tokens)}
}

func (o *rewardObjective) reference() bool { return false }
func (o *rewardObjective) whole() bool     { return false }
func (o *rewardObjective) done()           {}
func (o *rewardObjective) reset()          { *o = rewardObjective{cfg: o.cfg} }

func (o *rewardObjective) begin(_ *rowRun, b *offBatch) error {
	o.total = float64(len(b.rows))
	return nil
}

func (o *rewardObjective) loss(b *offBatch, part []int) (float64, func(), error) {
	sum := 0.0
	var stats preference.RewardStats
	for _, k := range part {
		v, w := b.value[k], b.rows[k].RowWeight()
		res, err := preference.Reward(o.cfg, []preference.ScorePair{{Chosen: v[0], Rejected: v[1], Margin: b.rows[k].Margin}}, o.total)
		if err != nil {
			return 0, nil, err
		}
		stats.Merge(res.Stats)
		b.dValue[k] = []float64{w * res.DChosen[0], w * res.DRejected[0]}
		sum += w * res.Loss
	}
	return sum, func() { o.stats.Merge(stats) }, nil
}

func (o *rewardObjective) metrics() map[string]float64 { return o.stats.Metrics() }
