package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// digest is how a file is checked: a SHA-256 of its content, or git's SHA-1 of
// "blob SIZE\0" and the content.
type digest struct {
	algo string // "sha256" or "git-sha1"
	hex  string
}

func (d digest) String() string { return d.algo + ":" + d.hex }

func (d digest) hash(size int64) hash.Hash {
	if d.algo == "sha256" {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// matches reads a file; a missing one doesn't match.
func (d digest) matches(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("hub: check %s: %w", path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("hub: check %s: %w", path, err)
	}
	h := d.hash(st.Size())
	if _, err := io.Copy(h, f); err != nil {
		return false, fmt.Errorf("hub: check %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)) == d.hex, nil
}

// httpStatus is an answer that is not the content.
type httpStatus struct {
	url   string
	code  int
	after time.Duration // Retry-After; 0 = none
}

func newHTTPStatus(url string, resp *http.Response) *httpStatus {
	e := &httpStatus{url: url, code: resp.StatusCode}
	after := resp.Header.Get("Retry-After")
	if s, err := strconv.Atoi(after); err == nil && s > 0 {
		e.after = time.Duration(min(s, 1<<30)) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		e.after = max(time.Until(at), 0)
	}
	return e
}

func (e *httpStatus) Error() string {
	hint := ""
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = " (a private or gated repository needs HF_TOKEN, and its terms accepted)"
	case http.StatusNotFound:
		hint = " (wrong name or revision, or a private repository without HF_TOKEN)"
	case http.StatusTooManyRequests:
		hint = " (too many requests; with HF_TOKEN the hub allows more)"
	}
	if e.after > 0 {
		hint += fmt.Sprintf(" and asks to wait %v", e.after.Round(time.Second))
	}
	return fmt.Sprintf("hub: %s answered %d %s%s", e.url, e.code, http.StatusText(e.code), hint)
}

// temporary reports whether trying again may help.
func temporary(err error) bool {
	var s *httpStatus
	if errors.As(err, &s) {
		return s.code == http.StatusTooManyRequests || s.code == http.StatusRequestTimeout || s.code >= 500
	}
	return !errors.Is(err, ErrDigest) && !errors.Is(err, os.ErrPermission) && !errors.Is(err, errLocal)
}

// errLocal marks failures of this machine, which no retry mends.
var errLocal = errors.New("hub: local file")

// maxRetryAfter is how long a server may ask to wait before the pull gives up.
const maxRetryAfter = 5 * time.Minute

// retry calls f until it succeeds, fails for good, or has failed often enough.
func (c *Client) retry(ctx context.Context, what string, f func() error) error {
	retries := c.Retries
	if retries <= 0 {
		retries = 5
	}
	var err error
	for n := range retries {
		if n > 0 {
			var s *httpStatus
			var after time.Duration
			if errors.As(err, &s) {
				after = s.after
			}
			if after > maxRetryAfter {
				return fmt.Errorf("hub: gave up on %s: run again later to resume: %w", what, err)
			}
			if waitErr := c.backoff(ctx, n, after); waitErr != nil {
				return errors.Join(waitErr, err)
			}
		}
		if err = f(); err == nil || ctx.Err() != nil || !temporary(err) {
			return err
		}
	}
	return fmt.Errorf("hub: gave up on %s after %d attempts (run again to resume): %w", what, retries, err)
}

// fetch downloads url to path, resuming a part left by an earlier attempt, and
// checks it.
func (c *Client) fetch(ctx context.Context, url, path string, want digest, size int64, progress Progress) error {
	if ok, err := want.matches(path); err != nil || ok {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	// The digest in the name keeps parts of different contents apart.
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+want.hex[:12]+".part")
	if err := checkSpace(part, size); err != nil {
		return err
	}
	err := c.retry(ctx, filepath.Base(path), func() error {
		return c.attempt(ctx, url, part, filepath.Base(path), size, progress)
	})
	if err != nil {
		return err
	}
	ok, err := want.matches(part)
	if err != nil {
		return err
	}
	if !ok {
		os.Remove(part)
		return fmt.Errorf("%w: %s is not %s; it was deleted, pull again", ErrDigest, filepath.Base(path), want)
	}
	return publish(part, path)
}

// checkSpace refuses what the disk can't hold, a resumed part counted in.
func checkSpace(part string, size int64) error {
	free, ok := freeBytes(filepath.Dir(part))
	if !ok || size < 0 {
		return nil // writing will tell
	}
	need := size
	if st, err := os.Stat(part); err == nil {
		need -= st.Size()
	}
	if need > free {
		return fmt.Errorf("%w: %s needs %d bytes more, its disk has %d free: make room, or choose another folder", errLocal, filepath.Base(part), need, free)
	}
	return nil
}

// localError is a failed file operation; a full disk gets its remedy.
func localError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the disk is full: make room and run again to resume: %w", errLocal, err)
	}
	return fmt.Errorf("%w: %w", errLocal, err)
}

// publish makes a finished temporary file durable under its final name.
func publish(part, path string) error {
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	err = errors.Join(f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return fmt.Errorf("hub: store %s: %w", path, err)
	}
	return nil
}

// attempt asks for what is missing in part and appends it.
func (c *Client) attempt(ctx context.Context, url, part, name string, size int64, progress Progress) error {
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return localError(err)
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return localError(err)
	}
	have := end
	if size >= 0 && have == size {
		return nil
	}
	if size >= 0 && have > size {
		have = 0
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := c.request(ctx, http.MethodGet, url)
	if err != nil {
		return err
	}
	if have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if !strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(have, 10)+"-") {
			return fmt.Errorf("hub: asked for bytes from %d, got Content-Range %q", have, resp.Header.Get("Content-Range"))
		}
	case http.StatusOK:
		have = 0 // the server doesn't resume: start over
	case http.StatusRequestedRangeNotSatisfiable:
		if err := f.Truncate(0); err != nil {
			return localError(err)
		}
		return &httpStatus{url: url, code: http.StatusRequestTimeout} // try again from zero
	default:
		return newHTTPStatus(url, resp)
	}
	if have < end {
		if err := f.Truncate(have); err != nil {
			return localError(err)
		}
		if _, err := f.Seek(have, io.SeekStart); err != nil {
			return localError(err)
		}
	}
	stall := c.Stall
	if stall <= 0 {
		stall = time.Minute
	}
	watchdog := time.AfterFunc(stall, func() { cancel(fmt.Errorf("hub: no byte for %v", stall)) })
	defer watchdog.Stop()
	buf := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buf)
		watchdog.Reset(stall)
		if n > 0 {
			if _, werr := f.Write(buf[:n]); werr != nil {
				return localError(werr)
			}
			have += int64(n)
			progress(name, have, size)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("hub: %s broke off at byte %d: %w", name, have, err)
		}
	}
	if size >= 0 && have != size {
		return fmt.Errorf("hub: %s ended at byte %d of %d", name, have, size)
	}
	return nil
}

// client follows redirects without taking the token to another host or port:
// net/http itself would, to subdomains.
func (c *Client) client() *http.Client {
	client := *defaultHTTP
	if c.HTTP != nil {
		client = *c.HTTP
	}
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		first := via[0].URL
		switch {
		case len(via) >= 10:
			return errors.New("hub: more than 10 redirects")
		case first.Scheme == "https" && req.URL.Scheme != "https":
			return fmt.Errorf("hub: refused to follow %s from https to %s", first.Host, req.URL.Scheme)
		case req.URL.Host != first.Host:
			req.Header.Del("Authorization")
		}
		return nil
	}
	return &client
}

// defaultHTTP has no overall timeout, since files are large; connecting and
// answering are bounded here and the transfer by the stall watchdog.
var defaultHTTP = &http.Client{Transport: &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
	ForceAttemptHTTP2:     true,
	TLSHandshakeTimeout:   30 * time.Second,
	ResponseHeaderTimeout: time.Minute,
	IdleConnTimeout:       30 * time.Second,
}}
