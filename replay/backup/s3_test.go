package backup_test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// s3 is a small server that speaks the part of S3 that targets use, and checks
// signatures by itself: AWS Signature Version 4, header form, of the request (its
// chunks are not checked).
type s3 struct {
	t       *testing.T
	http    *httptest.Server
	mu      sync.Mutex
	objects map[string][]byte
	times   map[string]time.Time
}

const (
	s3ID, s3Secret = "AKTEST", "s3cret/key"
	s3Bucket       = "bucket"
)

func newS3(t *testing.T) *s3 {
	t.Helper()
	s := &s3{t: t, objects: map[string][]byte{}, times: map[string]time.Time{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	t.Setenv("AWS_ACCESS_KEY_ID", s3ID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3Secret)
	t.Setenv("AWS_SESSION_TOKEN", "")
	return s
}

func (s *s3) where() string {
	return "s3://" + s3Bucket + "/some/prefix?insecure=true&endpoint=" + strings.TrimPrefix(s.http.URL, "http://")
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, code)
}

func (s *s3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !signed(r) {
		fail(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != s3Bucket {
		fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err == nil && strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			body, err = unchunk(body)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, "IncompleteBody")
			return
		}
		s.objects[key], s.times[key] = body, time.Now()
		w.Header().Set("ETag", `"x"`)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet && key == "":
		s.list(w, r.URL.Query())
	default:
		b, ok := s.objects[key]
		if !ok {
			fail(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		w.Header().Set("Last-Modified", s.times[key].UTC().Format(http.TimeFormat))
		if r.Method == http.MethodGet {
			_, _ = w.Write(b)
		}
	}
}

// list answers in pages of two, to have them asked for.
func (s *s3) list(w http.ResponseWriter, q url.Values) {
	type object struct {
		Key          string
		Size         int
		LastModified string
		ETag         string
	}
	out := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []object
	}{Name: s3Bucket, Prefix: q.Get("prefix")}
	var keys []string
	for k := range s.objects {
		if strings.HasPrefix(k, q.Get("prefix")) && k > q.Get("continuation-token") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if len(out.Contents) == 2 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[1].Key
			break
		}
		out.Contents = append(out.Contents, object{k, len(s.objects[k]), s.times[k].UTC().Format("2006-01-02T15:04:05.000Z"), `"x"`})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out)
}

// unchunk reads a body of signed chunks: "size;chunk-signature=...\r\n data \r\n".
func unchunk(b []byte) ([]byte, error) {
	r := bufio.NewReader(bytes.NewReader(b))
	var out []byte
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n == 0 {
			return out, err
		}
		data := make([]byte, n+2)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		out = append(out, data[:n]...)
	}
}

// signed checks a request's signature, as the AWS documentation describes it
// (Create a signed request: canonical request, string to sign, signing key).
func signed(r *http.Request) bool {
	fields := map[string]string{}
	alg, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for _, f := range strings.Split(rest, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(f), "=")
		fields[k] = v
	}
	id, scope, _ := strings.Cut(fields["Credential"], "/")
	parts := strings.Split(scope, "/") // date, region, service, aws4_request
	if alg != "AWS4-HMAC-SHA256" || id != s3ID || len(parts) != 4 {
		return false
	}
	names := strings.Split(fields["SignedHeaders"], ";")
	if !slices.Contains(names, "host") || !slices.Contains(names, "x-amz-date") || !slices.Contains(names, "x-amz-content-sha256") {
		return false
	}
	var heads strings.Builder
	for _, n := range names {
		v := strings.Join(r.Header.Values(n), ",")
		switch n {
		case "host":
			v = r.Host
		case "content-length":
			v = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&heads, "%s:%s\n", n, strings.TrimSpace(v))
	}
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"), heads.String(),
		fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{alg, r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + s3Secret)
	for _, p := range append(parts, text) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(p))
		key = h.Sum(nil)
	}
	return hmac.Equal([]byte(hex.EncodeToString(key)), []byte(fields["Signature"]))
}
