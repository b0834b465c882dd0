package learner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// trainedRows trains with a checkpoint every second step and gives what a log
// would have of each.
func trainedRows(t *testing.T, c Config) (dir string, records []OfflineRecord, parts OfflineParts) {
	t.Helper()
	m, b := realBackend(t)
	lc := identityOf(t, c).LoRA
	parts = OfflineParts{Base: identity().Base, NewTrainer: func(tc model.TrainerConfig) (model.Trainer, error) { return b.NewTrainer(tc) },
		Adapter: func(p []float32) (string, error) {
			a, err := model.AdapterOf(m.Config, lc, m.Digest, p, c.Algorithm == Reward)
			if err != nil {
				return "", err
			}
			return a.Digest(), nil
		}}
	dir = t.TempDir()
	c.SaveSteps = 2
	l := offlineLearner(t, c)
	require.NoError(t, RunOffline(ctx, l, offlineRows(c.Algorithm), OfflineOptions{Dir: dir, OnStep: func(s OfflineStep) error {
		a, err := parts.Adapter(l.Params())
		require.NoError(t, err)
		records = append(records, OfflineRecord{s.Step, a, s.Metrics})
		return nil
	}}))
	return dir, records, parts
}

func identityOf(t *testing.T, c Config) Identity { return offlineLearner(t, c).ident }

// Any committed step of any algorithm can be recomputed, from the checkpoint
// before it or from the start, and comes out bit for bit.
func TestVerifyOfflineRecomputesEveryStep(t *testing.T) {
	for algorithm, c := range offlineConfigs() {
		c.NumTrainEpochs = 2
		dir, records, parts := trainedRows(t, c)
		require.Greater(t, len(records), 3)
		for _, rec := range records {
			r, err := VerifyOffline(ctx, dir, rec, offlineRows(algorithm), parts)
			require.NoError(t, err)
			require.True(t, r.OK, "%s step %d", algorithm, rec.Step)
			require.Empty(t, r.Metrics)
			require.Zero(t, r.Different)
			require.Equal(t, (rec.Step-1)/2*2, *r.From)
			require.Equal(t, r.CheckpointRecorded != "", rec.Step%2 == 0 || int(rec.Step) == len(records))
		}
		// without the checkpoint before it, from further back
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "step-00000002")))
		r, err := VerifyOffline(ctx, dir, records[2], offlineRows(algorithm), parts)
		require.NoError(t, err)
		require.True(t, r.OK)
		require.Zero(t, *r.From)
	}
}

func TestVerifyOfflineTellsDifferences(t *testing.T) {
	c := offlineConfigs()[DPO]
	c.NumTrainEpochs = 2
	dir, records, parts := trainedRows(t, c)
	set := offlineRows(DPO)

	rec := records[0]
	rec.Adapter, rec.Metrics = "blake3:other", map[string]float64{"loss": 7}
	r, err := VerifyOffline(ctx, dir, rec, set, parts)
	require.NoError(t, err)
	require.False(t, r.OK)
	require.NotEqual(t, r.AdapterRecorded, r.AdapterRecomputed)
	require.Contains(t, r.Metrics, MetricDiff{"loss", 7, records[0].Metrics["loss"]})

	rows := append([]data.Example(nil), set.Rows()...)
	rows[3].Chosen = data.Completion{Tokens: []int32{9, 5}}
	changed := data.NewSet(set.Name(), rows, data.Order{Shuffle: true, LengthWindow: 4})
	_, err = VerifyOffline(ctx, dir, records[1], changed, parts)
	require.ErrorIs(t, err, ErrCheckpoint)
	require.ErrorContains(t, err, "dataset digest")

	other := parts
	other.Base = "blake3:another"
	_, err = VerifyOffline(ctx, dir, records[1], set, other)
	require.ErrorContains(t, err, `base is`)

	rec = records[0] // saved in no checkpoint, and its line lost
	rec.Adapter = ""
	_, err = VerifyOffline(ctx, dir, rec, set, parts)
	require.ErrorContains(t, err, "not recorded; saved, and so verifiable, are the steps [2 ")
	_, err = VerifyOffline(ctx, dir, OfflineRecord{Step: 99}, set, parts)
	require.ErrorContains(t, err, "it is not committed: the last saved step is")
	_, err = VerifyOffline(ctx, t.TempDir(), records[0], set, parts)
	require.ErrorIs(t, err, ErrCheckpoint)
}
