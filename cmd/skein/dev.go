package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project/supervised"
)

func newDev(_ *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "dev",
		Short:  "Commands for working on Skein itself",
		Hidden: true,
	}
	cmd.AddCommand(newTinyModel())
	return cmd
}

func newTinyModel() *cobra.Command {
	var config, out string
	cmd := &cobra.Command{
		Use:     "tiny-model",
		Short:   "Train the embedded tiny model from its recipe",
		Example: "  skein dev tiny-model --config recipes/tiny-model.yaml --out model/tiny/data",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := supervised.LoadTinyRecipe(config)
			if err != nil {
				return err
			}
			return supervised.TrainTiny(cmd.Context(), r, out, os.Stderr)
		},
	}
	cmd.Flags().StringVar(&config, "config", "recipes/tiny-model.yaml", "recipe")
	cmd.Flags().StringVar(&out, "out", "model/tiny/data", "folder with chat_template.jinja; gets the model")
	return cmd
}
