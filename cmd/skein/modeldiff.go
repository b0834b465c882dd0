package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
)

func newModelDiff(g *globals) *cobra.Command {
	var base string
	var all bool
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two models or two adapters, tensor by tensor",
		Long: `diff compares two models (of any formats) or two LoRA adapters (folders in PEFT's
format, or adapter blobs with --base to say of which model). It prints what
differs: fields, shapes, and for numbers the largest |a-b|, |a-b|/|a| and the
cosine; for adapters also of the products scale*B*A, which is what they change.

Exit status: 0 equal, 1 different (or an error, which is printed). Different
storage types of equal numbers are no difference.`,
		Example: `  skein model diff ./base ./merged
  skein model diff model.gguf ./model --all
  skein model diff adapter-3 adapter-7 --json`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := diff(args[0], args[1], base)
			if err != nil {
				return err
			}
			if err := g.result(d, func() { printDiff(args[0], args[1], d, all) }); err != nil {
				return err
			}
			if !d.Equal {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&base, "base", "", "the adapters' base model, needed for adapter blobs")
	cmd.Flags().BoolVar(&all, "all", false, "list equal tensors too")
	return cmd
}

func diff(a, b, base string) (*model.Difference, error) {
	adapterA, err := isAdapter(a)
	if err != nil {
		return nil, err
	}
	adapterB, err := isAdapter(b)
	switch {
	case err != nil:
		return nil, err
	case adapterA != adapterB:
		return nil, fmt.Errorf("one of %s and %s is an adapter and the other a model: merge the adapter first with skein model merge", a, b)
	case adapterA:
		x, err := readAdapterFile(a, base)
		if err != nil {
			return nil, err
		}
		y, err := readAdapterFile(b, base)
		if err != nil {
			return nil, err
		}
		return model.DiffAdapters(x, y)
	}
	x, pathA, err := openModel(a)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	y, pathB, err := openModel(b)
	if err != nil {
		return nil, err
	}
	defer y.Close()
	typesA, err := model.StoredTypes(pathA, x.Config)
	if err != nil {
		return nil, err
	}
	typesB, err := model.StoredTypes(pathB, y.Config)
	if err != nil {
		return nil, err
	}
	return model.DiffModels(x, y, typesA, typesB)
}

// isAdapter tells a PEFT folder or an adapter blob from a model.
func isAdapter(path string) (bool, error) {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // perhaps a pulled reference
	}
	if err != nil {
		return false, err
	}
	if !st.IsDir() {
		return filepath.Ext(path) != ".gguf", nil
	}
	_, err = os.Stat(filepath.Join(path, "adapter_config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func readAdapterFile(path, base string) (*model.AdapterFile, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return model.ReadAdapterFile(path)
	}
	if base == "" {
		return nil, fmt.Errorf("%s is an adapter blob, whose tensors depend on its base: name that with --base", path)
	}
	info, err := inspectModel(base)
	if err != nil {
		return nil, err
	}
	if info.Problem != nil {
		return nil, info.Problem
	}
	a, err := loadAdapter(path, info.Config)
	if err != nil {
		return nil, err
	}
	return a.File(info.Config)
}

func printDiff(a, b string, d *model.Difference, all bool) {
	for _, f := range d.Fields {
		fmt.Printf("%s: %s, now %s\n", f.Name, f.A, f.B)
	}
	printTensors(d.Tensors, all)
	if len(d.Products) > 0 {
		fmt.Println("scale*B*A:")
		printTensors(d.Products, all)
	}
	differ := 0
	for _, t := range d.Tensors {
		if !t.Equal {
			differ++
		}
	}
	if d.Equal {
		fmt.Printf("%s and %s are equal: %d tensors\n", a, b, len(d.Tensors))
		return
	}
	fmt.Printf("%d of %d tensors and %d fields differ; over tensors of one shape: max |a-b| %.3g, |a-b|/|a| %.3g, cosine %.6f\n",
		differ, len(d.Tensors), len(d.Fields), d.Total.MaxAbs, d.Total.RelNorm, d.Total.Cosine)
}

func printTensors(tensors []model.TensorDifference, all bool) {
	for _, t := range tensors {
		types := ""
		if t.TypeA != t.TypeB {
			types = fmt.Sprintf("  %s, now %s", t.TypeA, t.TypeB)
		}
		switch {
		case t.Equal && !all:
		case t.Equal:
			fmt.Printf("  %-56s equal%s\n", t.Name, types)
		case t.ShapeA == nil:
			fmt.Printf("  %-56s only in the second, %v\n", t.Name, t.ShapeB)
		case t.ShapeB == nil:
			fmt.Printf("  %-56s only in the first, %v\n", t.Name, t.ShapeA)
		case !slices.Equal(t.ShapeA, t.ShapeB):
			fmt.Printf("  %-56s shape %v, now %v\n", t.Name, t.ShapeA, t.ShapeB)
		default:
			fmt.Printf("  %-56s max %-10.3g relative %-10.3g cosine %.6f%s\n", t.Name, t.MaxAbs, t.RelNorm, t.Cosine, types)
		}
	}
}
