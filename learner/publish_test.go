package learner

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// publish: bf16 rounds what workers get and nothing else: checkpoints are those
// of the same run without it, and a step's check rounds too.
func TestPublishBF16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := map[string]*rig{}
		stores := map[string]*foldStore{}
		for _, publish := range []string{"", PublishBF16} {
			c := small(4)
			c.MaxSteps, c.Publish = 3, publish
			s := newFoldStore(t, c)
			s.work(2)
			g := newRig(t, c, loopConfig(), s)
			_, err := g.lp.Run(t.Context())
			require.NoError(t, err)
			steps[publish], stores[publish] = g, s
		}
		s := stores[PublishBF16]
		for i, rec := range steps[PublishBF16].steps {
			exact, err := model.DecodeAdapter(stores[""].blobs[steps[""].steps[i].Adapter])
			require.NoError(t, err)
			a, err := model.DecodeAdapter(s.blobs[rec.Adapter])
			require.NoError(t, err)
			require.Equal(t, exact.RoundBF16(), a)
			require.Equal(t, steps[""].ckpts[i].Params, steps[PublishBF16].ckpts[i].Params)
			r, err := VerifyStep(t.Context(), s, run, rec.Step, func(model.TrainerConfig) (model.Trainer, error) { return newBandit(vocab), nil })
			require.NoError(t, err)
			require.True(t, r.OK)
			require.Equal(t, rec.Adapter, r.AdapterRecomputed)
		}
	})
	c := small(4)
	c.Publish = "fp8"
	require.ErrorContains(t, c.Validate(), `publish: unknown "fp8"; use "f32" or "bf16"`)
	sft := DefaultConfigOf(SFT)
	sft.Publish = PublishBF16
	require.ErrorContains(t, sft.Validate(), "publish")
}
