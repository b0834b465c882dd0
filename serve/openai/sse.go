package openai

import (
	"bytes"
	"fmt"
	"net/http"
	"time"
)

// writeTimeout is how long a client may take to read one event.
const writeTimeout = 30 * time.Second

// sse writes server-sent events. The header goes out with the first one, so
// that what fails before it is still answered with its status.
type sse struct {
	w       http.ResponseWriter
	c       *http.ResponseController
	started bool
}

func newSSE(w http.ResponseWriter) *sse { return &sse{w: w, c: http.NewResponseController(w)} }

func (s *sse) send(v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	return s.raw(bytes.TrimSuffix(data, []byte("\n")))
}

func (s *sse) raw(data []byte) error {
	if !s.started {
		s.w.Header().Set("Content-Type", "text/event-stream")
		s.w.Header().Set("Cache-Control", "no-cache")
		s.started = true
	}
	// A server without write deadlines (a test recorder) has nothing to stall.
	_ = s.c.SetWriteDeadline(time.Now().Add(writeTimeout))
	var b bytes.Buffer
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := s.c.Flush(); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// finish ends the stream. An error after the first event is sent as one.
func (s *sse) finish(err error) error {
	if err != nil {
		if !s.started {
			return err
		}
		if e := s.send(map[string]*Error{"error": asError(err)}); e != nil {
			return nil // the client is gone
		}
	}
	_ = s.raw([]byte("[DONE]")) // the client may be gone
	return nil
}
