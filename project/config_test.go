package project

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

func TestGoodConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.good.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			c, _, err := Load(f, nil)
			require.NoError(t, err)
			// What is saved with the run reads back as the same run.
			text, err := c.YAML()
			require.NoError(t, err)
			again, err := Parse(text)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(c, again))
		})
	}
}

func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			_, _, err = Load(f, nil)
			require.Error(t, err)
			wants := 0
			for line := range strings.Lines(string(text)) {
				if want, ok := strings.CutPrefix(line, "# want: "); ok {
					wants++
					require.ErrorContains(t, err, strings.TrimSpace(want))
				}
			}
			require.Positive(t, wants, "the file names no wanted error")
		})
	}
}

func TestAliasesAreNoted(t *testing.T) {
	c, notes, err := Load("testdata/aliases.good.yml", nil)
	require.NoError(t, err)
	require.Equal(t, 1e-4, c.Training.LearningRate)
	require.Equal(t, 4, c.Training.NumGenerations)
	require.Equal(t, 0.01, c.Training.Beta)
	require.Equal(t, 8, c.LoRA.Rank)
	require.Contains(t, notes, "training.lr is read as training.learning_rate")
	require.Len(t, notes, 5)
}

func TestSet(t *testing.T) {
	c, _, err := Load("testdata/minimal.good.yml", []string{
		"training.learning_rate=3e-4", "run=other", "lora.targets=[q_proj, v_proj]", "task.options.seed=7",
		"lora.rank_pattern.v_proj=32", `lora.alpha_pattern={'layers\.0\..*': 8, q_proj: 0.5}`,
	})
	require.NoError(t, err)
	require.Equal(t, 3e-4, c.Training.LearningRate)
	require.Equal(t, "other", c.Run)
	require.Equal(t, []string{"q_proj", "v_proj"}, c.LoRA.Targets)
	require.Equal(t, map[string]string{"seed": "7"}, c.Task.Options)
	require.Equal(t, model.Pattern[int]{{Key: "v_proj", Value: 32}}, c.LoRA.RankPattern)
	require.Equal(t, model.Pattern[float64]{{Key: `layers\.0\..*`, Value: 8}, {Key: "q_proj", Value: 0.5}}, c.LoRA.AlphaPattern)
	text, err := c.YAML()
	require.NoError(t, err)
	again, err := Parse(text)
	require.NoError(t, err)
	require.Equal(t, c.LoRA, again.LoRA)

	for set, want := range map[string]string{
		"run":                          "key.path=value",
		"run.x=1":                      `"run" is not a section`,
		"training.nosuch=1":            "training.nosuch: unknown key",
		"training.epsilom=1":           "training.epsilom: unknown key: did you mean epsilon?",
		"lora.dropout=0.1":             "lora.dropout: dropout belongs to training, not to the adapter: training.lora_dropout",
		"training.sync_ref_model=true": "training.sync_ref_model: a reference that moves is training.reference: moving",
		"watch.report_to=[wandb]":      `watch.report_to: unknown "wandb"`,
		"watch.kl=-1":                  "watch.kl: -1 is outside",
		"lora.rank=[":                  "is not YAML",
		"training.epsilon=no":          `training.epsilon: "no" is not a number`,
		"training=3":                   `training: "3" is not a section`,
		"rollout.slots=1.5":            `rollout.slots: "1.5" is not a whole number`,
		"lora.targets=q_proj":          `lora.targets: "q_proj" is not a list`,
		"lora.rank_pattern=[q_proj]":   "lora.rank_pattern: a list is not a mapping of module names to whole numbers",
		"lora.rank_pattern.q_proj=1.5": "lora.rank_pattern: a mapping is not a mapping of module names to whole numbers",
		"lora.rank_pattern.q_proj=0":   `lora.rank_pattern: "q_proj": rank is 0, want 1 to 4096`,
		"lora.alpha_pattern.q_proj=a":  "lora.alpha_pattern: a mapping is not a mapping of names to values",
		"rollout.turn_timeout=soon":    `rollout.turn_timeout: "soon" is not a duration`,
		"rollout.turn_timeout=30":      `rollout.turn_timeout: "30" is not a duration such as 30s`,
	} {
		_, _, err := Load("testdata/minimal.good.yml", []string{set})
		require.ErrorContains(t, err, want, set)
	}
}

// What --set says wins over the file, whichever of a key's names either uses.
func TestSetByAlias(t *testing.T) {
	c, notes, err := Load("testdata/aliases.good.yml", []string{"training.learning_rate=2e-4", "training.n=6", "training.group_size=7"})
	require.NoError(t, err)
	require.Equal(t, 2e-4, c.Training.LearningRate)
	require.Equal(t, 7, c.Training.NumGenerations)
	require.Contains(t, notes, "training.n is read as training.num_generations")
}

// Every problem comes with its path, even in one message.
func TestProblemsHavePaths(t *testing.T) {
	_, err := Parse([]byte("training: {num_generations: 1, max_steps: 0, no: 1}\nlora: 3\nlora: {rank: 1}\n"))
	require.Error(t, err)
	for _, want := range []string{"training.num_generations: 1", "training.max_steps: 0", "training.no: unknown key", `lora: "3" is not a section`, "lora: given twice"} {
		require.ErrorContains(t, err, want)
	}
}

func TestEmbeddedRecipesAreValid(t *testing.T) {
	for _, name := range []string{"quickstart", "demo-tiny", "demo-smollm2-135m", "store-grpo", "gsm8k-grpo"} {
		_, _, err := LoadRecipe(name, nil)
		require.NoError(t, err, name)
	}
	_, _, err := LoadRecipe("nosuch", nil)
	require.ErrorContains(t, err, "quickstart")
}
