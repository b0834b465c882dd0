package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

func newModelExportAdapter(g *globals) *cobra.Command {
	var t target
	var version uint64
	var out, base string
	cmd := &cobra.Command{
		Use:   "export-adapter",
		Short: "Write a run's policy as a LoRA adapter in PEFT's format",
		Long: `export-adapter writes the adapter of one policy version as adapter_config.json
and adapter_model.safetensors, which peft, transformers and vLLM load over the
run's base model. Its digest is checked against the one the run published. Files
of an earlier export in the same folder are replaced.

Where only Skein can open the base (embedded:tiny, a .gguf file), --save-base
writes it too, in Hugging Face layout and float32.`,
		Example: `  skein model export-adapter --dir runs/demo -o adapter
  skein model export-adapter --dir runs/demo --version 7 -o adapter-7 --save-base base`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			st, run, err := t.open(ctx, g)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, st.Close()) }()
			status, err := st.Status(ctx, run)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("version") {
				version = status.Latest.Version
			}
			p, err := policyAt(ctx, st, status, version)
			if err != nil {
				return err
			}
			rep, err := exportAdapter(ctx, st, status.Spec, p, out, base)
			if err != nil {
				return fmt.Errorf("exporting policy version %d of run %s: %w", version, run, err)
			}
			return g.result(rep, func() { printExport(rep) })
		},
	}
	t.flags(cmd)
	cmd.Flags().Uint64Var(&version, "version", 0, "policy version; 0 is the start of the run (default: the newest)")
	cmd.Flags().StringVarP(&out, "output", "o", "", "folder to write the adapter to")
	cmd.Flags().StringVar(&base, "save-base", "", "folder to write the base model to as well")
	_ = cmd.MarkFlagRequired("output")
	return cmd
}

// exportReport is what skein model export-adapter --json prints.
type exportReport struct {
	Run        string           `json:"run"`
	Version    uint64           `json:"version"`
	Step       uint64           `json:"step"` // that published it; 0 for version 0
	Digest     string           `json:"digest"`
	LoRA       model.LoRAConfig `json:"lora"`
	Full       bool             `json:"full,omitempty"` // all weights: a model was written
	BaseModel  string           `json:"base_model"`     // as the adapter names it
	BaseDigest string           `json:"base_digest"`
	Output     string           `json:"output"`
}

func printExport(r exportReport) {
	fmt.Printf("policy version %d of run %s (step %d), %s\n", r.Version, r.Run, r.Step, r.Digest)
	if r.Full {
		fmt.Printf("  a model of its own: all weights were trained\n")
	} else {
		fmt.Printf("  LoRA %v\n", r.LoRA)
	}
	fmt.Printf("  base %s, %s\n  written to %s\n", r.BaseModel, r.BaseDigest, r.Output)
}

// policyAt finds one published version of a run.
func policyAt(ctx context.Context, st replay.Store, status replay.RunStatus, version uint64) (replay.Policy, error) {
	run := status.Spec.Run
	if version > status.Latest.Version {
		return replay.Policy{}, fmt.Errorf("run %s has no policy version %d: it has 0 to %d", run, version, status.Latest.Version)
	}
	if version == 0 {
		return replay.Policy{Run: run, Adapter: status.Spec.StartAdapter}, nil
	}
	p, err := st.WaitPolicy(ctx, run, version-1, 0)
	if err == nil && p.Version != version {
		err = fmt.Errorf("the store answers with policy version %d where %d was asked", p.Version, version)
	}
	return p, err
}

// exportAdapter writes a published policy to the folder out, and its base to
// the folder base unless that is empty. What it writes has the digest the run
// published and was trained on the model the run's configuration names.
func exportAdapter(ctx context.Context, st replay.Store, spec replay.RunSpec, p replay.Policy, out, base string) (exportReport, error) {
	if p.Adapter == "" {
		return exportReport{}, fmt.Errorf("it is the base model, without an adapter: choose a --version from 1")
	}
	c, err := project.Parse(spec.Config)
	if err != nil {
		return exportReport{}, err
	}
	blob, err := st.GetBlob(ctx, p.Adapter)
	if err != nil {
		return exportReport{}, err
	}
	a, err := model.DecodeAdapter(blob)
	if err != nil {
		return exportReport{}, err
	}
	if got := a.Digest(); got != p.Adapter {
		return exportReport{}, fmt.Errorf("the stored adapter's digest is %s, the run published %s", got, p.Adapter)
	}
	m, err := project.OpenModel(c.Model)
	if err != nil {
		return exportReport{}, err
	}
	defer m.Close()
	if err := a.CheckBase(m.Digest); err != nil {
		return exportReport{}, err
	}
	name := c.Model
	if base != "" {
		if err := m.Save(base, model.F32); err != nil {
			return exportReport{}, err
		}
		name = base
	}
	rep := exportReport{
		Run: spec.Run, Version: p.Version, Step: p.Step, Digest: p.Adapter, LoRA: a.LoRA,
		BaseModel: name, BaseDigest: m.Digest, Output: out,
	}
	if !a.Full {
		return rep, a.Save(out, m.Config, name)
	}
	rep.Full = true
	merged := *m
	if merged.Weights, err = m.Merge(a); err != nil {
		return rep, err
	}
	return rep, merged.Save(out, model.F32)
}
