package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrUnreachable: the server does not answer, or says that it cannot now.
var ErrUnreachable = errors.New("engine: server does not answer")

// maxAnswer bounds an answer: 64 MiB hold the ids and logprobs of half a million
// tokens.
const maxAnswer = 64 << 20

// Refusal is an answer other than 200: Message is the server's.
type Refusal struct {
	Call    string // method and path
	Status  int
	Message string
	after   time.Duration // Retry-After
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("engine: %s: HTTP %d: %s", r.Call, r.Status, r.Message)
}

// again says whether the same request may succeed later.
func (r *Refusal) again() bool {
	switch r.Status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// call sends in (nil: GET) and decodes the answer into out. It is repeated, with
// growing pauses, while that can help: when the server cannot be reached, breaks
// off or is overloaded. Not when ctx ends.
func (s *Server) call(ctx context.Context, path string, in, out any) error {
	pause := s.pause
	for attempt := 1; ; attempt++ {
		err := s.once(ctx, path, in, out)
		if err == nil || ctx.Err() != nil {
			return causeOf(ctx, err)
		}
		var r *Refusal
		isRefusal := errors.As(err, &r)
		if isRefusal && !r.again() || !isRefusal && !errors.Is(err, ErrUnreachable) {
			return err
		}
		if attempt >= s.cfg.Attempts {
			return fmt.Errorf("%w (%d attempts)", err, attempt)
		}
		s.retried.Add(1)
		s.cfg.Log.Debug("request is repeated", "server", s.cfg.URL, "attempt", attempt, "error", err)
		wait := pause/2 + rand.N(pause/2)
		if isRefusal {
			wait = max(wait, min(r.after, maxPause))
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return causeOf(ctx, err)
		}
		pause = min(2*pause, maxPause)
	}
}

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// causeOf prefers why the context ended to what the transport made of it.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("engine: %w", context.Cause(ctx))
	}
	return err
}

// once is one exchange.
func (s *Server) once(ctx context.Context, path string, in, out any) error {
	method, body := http.MethodGet, io.Reader(nil)
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("engine: %s: encode: %w", path, err)
		}
		method, body = http.MethodPost, bytes.NewReader(data)
	}
	what := method + " " + path
	req, err := http.NewRequestWithContext(ctx, method, s.cfg.URL+path, body)
	if err != nil {
		return fmt.Errorf("engine: %s: %w", what, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.cfg.Key)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, what, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: the answer broke off after %d bytes: %w", ErrUnreachable, what, len(data), err)
	case len(data) > maxAnswer:
		return fmt.Errorf("engine: %s: the answer is longer than %d bytes", what, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		r := &Refusal{Call: what, Status: resp.StatusCode, Message: message(data)}
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
			r.after = min(time.Duration(n), time.Minute) * time.Second
		}
		return r
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("engine: %s: the answer is no JSON of the expected form: %w", what, err)
	}
	return nil
}

// message is what an error body says, shortened: {"error":{"message":…}},
// {"message":…}, {"detail":…} or anything.
func message(data []byte) string {
	var m struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  string          `json:"detail"`
	}
	text := string(data)
	if json.Unmarshal(data, &m) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(m.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case m.Message != "":
			text = m.Message
		case m.Detail != "":
			text = m.Detail
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 500 {
		text = strings.ToValidUTF8(text[:500], "") + "…"
	}
	if text == "" {
		text = "without a reason"
	}
	return text
}
