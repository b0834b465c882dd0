package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
)

// writeReport is what skein model convert and merge print with --json.
type writeReport struct {
	Source     string   `json:"source"`
	Adapter    string   `json:"adapter,omitempty"`
	Output     string   `json:"output"`
	DType      string   `json:"dtype"`
	Parameters int64    `json:"parameters"`
	Bytes      int64    `json:"bytes"`
	Notes      []string `json:"notes"`
}

// writeFlags are those of commands that write a model.
type writeFlags struct {
	dtype string
	force bool
}

func (f *writeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dtype, "dtype", "", "f32, f16 or bf16; for a .gguf also q8_0, q5_1, q5_0, q4_1, q4_0 (default: the source's, f32 when that is quantised)")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace DST when it is a .gguf file or a model folder")
}

// check refuses before anything is loaded what could not be written later.
func (f *writeFlags) check(dst string) error {
	if _, err := os.Stat(dst); err == nil && !f.force {
		return fmt.Errorf("%s exists already: choose another name, or replace it with --force", dst)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Dir(filepath.Clean(dst))); err != nil {
		return fmt.Errorf("the folder of %s is not there: %w", dst, err)
	}
	gguf := strings.HasSuffix(dst, ".gguf")
	switch strings.ToLower(f.dtype) {
	case "", "f32", "f16", "bf16":
		return nil
	case "q8_0", "q5_1", "q5_0", "q4_1", "q4_0":
		if gguf {
			return nil
		}
		return fmt.Errorf("--dtype %s is for .gguf files only; %s means a Hugging Face folder: use f32, f16 or bf16, or a name that ends in .gguf", f.dtype, dst)
	}
	return fmt.Errorf("--dtype: %s is not one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0", f.dtype)
}

// typeFor is the type to write: the flag, or what the source mostly holds.
func (f *writeFlags) typeFor(src string) (string, error) {
	if f.dtype != "" {
		return strings.ToUpper(f.dtype), nil
	}
	info, err := model.Inspect(src)
	if err != nil {
		return "", err
	}
	best := ""
	for t, n := range info.ByType {
		if n > info.ByType[best] {
			best = t
		}
	}
	switch best {
	case "F16", "BF16":
		return best, nil
	}
	return "F32", nil
}

// write writes m to dst and reports it.
func (f *writeFlags) write(m *model.Model, dst, typ string) (writeReport, error) {
	notes, err := m.Write(dst, model.WriteOptions{Type: typ, Replace: f.force, Progress: meter("writing " + dst)})
	if err != nil {
		return writeReport{}, err
	}
	for _, n := range notes {
		fmt.Fprintln(os.Stderr, "note:", n)
	}
	size, err := sizeOf(dst)
	if err != nil {
		return writeReport{}, err
	}
	if notes == nil {
		notes = []string{}
	}
	return writeReport{Output: dst, DType: strings.ToLower(typ), Parameters: m.Config.NumParams(), Bytes: size, Notes: notes}, nil
}

func printWritten(r writeReport) {
	fmt.Printf("%s: %.2f M parameters as %s, %.1f MB\n", r.Output, float64(r.Parameters)/1e6, r.DType, float64(r.Bytes)/1e6)
}

// sizeOf is the size of a file, or of the files in a folder.
func sizeOf(path string) (int64, error) {
	var n int64
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// meter prints the progress of bytes on stderr, in steps of a tenth, and
// nothing for what is small.
func meter(what string) func(done, total int64) {
	next := int64(0)
	return func(done, total int64) {
		const small = 64 << 20
		if total < small || done < next && done < total {
			return
		}
		next = done + total/10
		fmt.Fprintf(os.Stderr, "%s  %.0f / %.0f MB\n", what, float64(done)/1e6, float64(total)/1e6)
	}
}

// openModel opens a model by path or pulled reference; the caller closes it.
func openModel(name string) (*model.Model, string, error) {
	path, err := modelPath(name)
	if err != nil {
		return nil, "", err
	}
	m, err := model.Open(path, model.WithProgress(meter("reading "+path)))
	return m, path, err
}

func newModelConvert(g *globals) *cobra.Command {
	var f writeFlags
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Turn a model into a .gguf file or a Hugging Face folder",
		Long: `convert reads SRC (a .gguf file, the first of a split one, a folder in Hugging
Face layout, or a pulled reference) and writes DST: a GGUF file when its name
ends in .gguf, else a folder in Hugging Face layout. Tokenizer, chat template and
stop tokens go along. The memory of the model in float32 is needed.

Quantised weights are read exactly as llama.cpp reads them. In a GGUF file
vectors stay float32 whatever --dtype says, and with four and five bits the
embedding and the head are q8_0. DST appears when all of it is written.`,
		Example: `  skein model convert ./my-model my-model.gguf --dtype q8_0
  skein model convert my-model.gguf ./my-model --dtype bf16
  skein model convert smollm2-135m smollm2.gguf --dtype f16 --force`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := f.check(args[1]); err != nil {
				return err
			}
			path, err := modelPath(args[0])
			if err != nil {
				return err
			}
			typ, err := f.typeFor(path)
			if err != nil {
				return err
			}
			m, _, err := openModel(path)
			if err != nil {
				return err
			}
			defer m.Close()
			rep, err := f.write(m, args[1], typ)
			if err != nil {
				return err
			}
			rep.Source = args[0]
			return g.result(rep, func() { printWritten(rep) })
		},
	}
	f.add(cmd)
	return cmd
}

func newModelMerge(g *globals) *cobra.Command {
	var f writeFlags
	var anyBase bool
	cmd := &cobra.Command{
		Use:   "merge BASE ADAPTER DST",
		Short: "Fold a LoRA adapter into its base and write the result as a model",
		Long: `merge writes the model whose matrices are W + scale*B*A, which answers like BASE
under ADAPTER without needing one. ADAPTER is a folder in PEFT's format or an
adapter blob of a run. DST is as in skein model convert.

An adapter that Skein trained names the digest of its base, and another BASE is
refused; one that another tool made names none, and --any-base says that you
know it fits.`,
		Example: `  skein model export-adapter --dir runs/demo -o adapter --save-base base
  skein model merge base adapter merged
  skein model merge ./my-model ./peft-adapter merged.gguf --dtype q8_0 --any-base`,
		Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			dst := args[2]
			if err := f.check(dst); err != nil {
				return err
			}
			m, path, err := openModel(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			typ, err := f.typeFor(path)
			if err != nil {
				return err
			}
			a, err := loadAdapter(args[1], m.Config)
			if err != nil {
				return err
			}
			if a.BaseDigest != m.Digest {
				if !anyBase {
					was := "names no base (another tool made it)"
					if a.BaseDigest != "" {
						was = "was trained on base " + a.BaseDigest
					}
					return fmt.Errorf("adapter %s %s, %s is %s: merge into the right base, or pass --any-base if you know that it fits", args[1], was, args[0], m.Digest)
				}
				a.BaseDigest = m.Digest
			}
			merged := *m
			if merged.Weights, err = m.Merge(a); err != nil {
				return err
			}
			rep, err := f.write(&merged, dst, typ)
			if err != nil {
				return err
			}
			rep.Source, rep.Adapter = args[0], args[1]
			return g.result(rep, func() { printWritten(rep) })
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&anyBase, "any-base", false, "merge though the adapter doesn't name this base")
	return cmd
}

// loadAdapter reads a folder in PEFT's format, or an adapter blob.
func loadAdapter(path string, c model.Config) (*model.Adapter, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return model.LoadAdapter(path, c)
	}
	blob, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a, err := model.DecodeAdapter(blob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (a PEFT adapter is named by its folder)", path, err)
	}
	return a, a.Check(c)
}
