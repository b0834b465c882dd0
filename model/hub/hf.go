package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const defaultHub = "https://huggingface.co"

// wanted are the files of a model repository that package model reads, its
// weights aside.
var wanted = regexp.MustCompile(`^(config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|` +
	`chat_template\.jinja|adapter_config\.json|LICENSE(\.\w+)?|README\.md)$`)

const indexFile = "model.safetensors.index.json"

func (c *Client) base() string {
	for _, b := range []string{c.BaseURL, os.Getenv("HF_ENDPOINT"), defaultHub} {
		if b != "" {
			return strings.TrimRight(b, "/")
		}
	}
	return defaultHub
}

// request adds the token for the hub's own host; see client for redirects.
func (c *Client) request(ctx context.Context, method, url string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	req.Header.Set("User-Agent", "skein")
	token := c.Token
	if token == "" {
		token = os.Getenv("HF_TOKEN")
	}
	if token != "" && strings.HasPrefix(url, c.base()+"/") {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// Bytes as stored: a compressed answer could not be resumed or checked.
	req.Header.Set("Accept-Encoding", "identity")
	return req, nil
}

func (c *Client) pullHF(ctx context.Context, r Ref, dest string, progress Progress) (string, error) {
	commit, files, err := c.list(ctx, r)
	if err != nil {
		return "", fmt.Errorf("hub: list %s: %w", r, err)
	}
	rec := receipt{Ref: r.String(), Commit: commit, Files: map[string]string{}}
	get := func(names ...string) error {
		for _, f := range names {
			src := c.base() + "/" + r.Name + "/resolve/" + url.PathEscape(commit) + "/" + url.PathEscape(f)
			want, size, err := c.head(ctx, src)
			if err != nil {
				return fmt.Errorf("hub: %s of %s: %w", f, r, err)
			}
			if err := c.fetch(ctx, src, filepath.Join(dest, f), want, size, progress); err != nil {
				return fmt.Errorf("hub: %s of %s: %w", f, r, err)
			}
			rec.Files[f] = want.String()
		}
		return nil
	}
	var weights []string
	switch {
	case r.File != "":
		if weights, err = ggufFiles(r, files); err != nil {
			return "", err
		}
	case slices.Contains(files, indexFile):
		if err := get(indexFile); err != nil {
			return "", err
		}
		if weights, err = indexed(filepath.Join(dest, indexFile), r, files); err != nil {
			return "", err
		}
	case slices.Contains(files, "model.safetensors"):
		weights = []string{"model.safetensors"}
	case slices.Contains(files, "adapter_model.safetensors"):
		weights = []string{"adapter_model.safetensors"}
	default:
		return "", noWeights(r, files)
	}
	for _, f := range files {
		if r.File == "" && wanted.MatchString(f) {
			if err := get(f); err != nil {
				return "", err
			}
		}
	}
	if err := get(weights...); err != nil {
		return "", err
	}
	return filepath.Join(dest, r.File), rec.write(dest)
}

// noWeights says what a repository without a safetensors model has instead.
func noWeights(r Ref, files []string) error {
	if i := slices.IndexFunc(files, isGGUF); i >= 0 {
		r.File = files[i]
		return fmt.Errorf("hub: %s has no model.safetensors but GGUF files (%s): name one, as in %s", r.Name, ggufList(files), r)
	}
	return fmt.Errorf("hub: %s has no model.safetensors (has %s)", r, strings.Join(files[:min(len(files), 20)], ", "))
}

func isGGUF(f string) bool { return path.Ext(f) == ".gguf" }

func ggufList(files []string) string {
	gguf := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !isGGUF(f) })
	if len(gguf) == 0 {
		return "none"
	}
	return strings.Join(gguf[:min(len(gguf), 20)], ", ")
}

// indexed lists the files that a sharded model's index names.
func indexed(index string, r Ref, files []string) ([]string, error) {
	data, err := os.ReadFile(index)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	var parsed struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &parsed); err != nil {
		return nil, fmt.Errorf("hub: %s of %s: %w", indexFile, r, err)
	}
	var out []string
	for tensor, f := range parsed.WeightMap {
		if slices.Contains(out, f) {
			continue
		}
		if f != path.Base(f) || path.Ext(f) != ".safetensors" || !slices.Contains(files, f) {
			return nil, fmt.Errorf("hub: %s of %s puts tensor %q into %q, which the repository doesn't have", indexFile, r, tensor, f)
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("hub: %s of %s names no file", indexFile, r)
	}
	slices.Sort(out)
	return out, nil
}

var firstPart = regexp.MustCompile(`^(.*)-00001-of-(\d{5})\.gguf$`)

// ggufFiles is the wanted GGUF file, with the others of a split one.
func ggufFiles(r Ref, files []string) ([]string, error) {
	out := []string{r.File}
	if m := firstPart.FindStringSubmatch(r.File); m != nil {
		n, _ := strconv.Atoi(m[2])
		for i := 2; i <= n; i++ {
			out = append(out, fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[2]))
		}
	}
	for _, f := range out {
		if !slices.Contains(files, f) {
			return nil, fmt.Errorf("hub: %s@%s has no file %s (its GGUF files: %s)", r.Name, r.Revision, f, ggufList(files))
		}
	}
	return out, nil
}

// list resolves the revision to a commit and lists its files.
func (c *Client) list(ctx context.Context, r Ref) (commit string, files []string, err error) {
	u := c.base() + "/api/models/" + r.Name + "/revision/" + url.PathEscape(r.Revision)
	err = c.retry(ctx, u, func() error {
		req, err := c.request(ctx, http.MethodGet, u)
		if err != nil {
			return err
		}
		resp, err := c.client().Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return newHTTPStatus(u, resp)
		}
		var info struct {
			SHA      string
			Siblings []struct {
				Name string `json:"rfilename"`
			}
		}
		if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&info); err != nil {
			return fmt.Errorf("%s: not the hub's JSON: %w", u, err)
		}
		if info.SHA == "" {
			return fmt.Errorf("%s: the answer names no commit", u)
		}
		commit, files = info.SHA, nil
		for _, s := range info.Siblings {
			files = append(files, s.Name)
		}
		return nil
	})
	return commit, files, err
}

// head learns a file's digest and size. The hub answers for large files with a
// redirect to its storage that carries them; the storage itself knows neither,
// so redirects to other hosts are not followed here.
func (c *Client) head(ctx context.Context, u string) (want digest, size int64, err error) {
	client := c.client()
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if req.URL.Host != via[0].URL.Host || len(via) > 5 || req.Response != nil && req.Response.Header.Get("X-Linked-Etag") != "" {
			return http.ErrUseLastResponse
		}
		return nil
	}
	err = c.retry(ctx, u, func() error {
		req, err := c.request(ctx, http.MethodHead, u)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode >= 400 {
			return newHTTPStatus(u, resp)
		}
		tag, length := resp.Header.Get("X-Linked-Etag"), resp.Header.Get("X-Linked-Size")
		if tag == "" {
			tag, length = resp.Header.Get("Etag"), resp.Header.Get("Content-Length")
		}
		tag = strings.ToLower(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`))
		switch {
		case hex64.MatchString(tag):
			want = digest{"sha256", tag}
		case hex40.MatchString(tag):
			want = digest{"git-sha1", tag}
		default:
			return fmt.Errorf("%w: the hub gave etag %q, which is no digest to check against", ErrDigest, tag)
		}
		if size, err = strconv.ParseInt(length, 10, 64); err != nil {
			size = -1
		}
		return nil
	})
	return want, size, err
}

var (
	hex64 = regexp.MustCompile(`^[0-9a-f]{64}$`)
	hex40 = regexp.MustCompile(`^[0-9a-f]{40}$`)
)
