package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
)

// guard checks where a request comes from and its bearer token, and turns
// panics into errors.
func (s *Server) guard(next http.Handler) http.Handler {
	sums := make([][32]byte, len(s.cfg.APIKeys))
	for i, k := range s.cfg.APIKeys {
		sums[i] = sha256.Sum256([]byte(k))
	}
	listen, _, _ := net.SplitHostPort(s.cfg.Listen) // Validate has read it
	own := loopback(listen) && len(sums) == 0 && !s.cfg.Open
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case own && !loopback(hostOf(r)):
			refuse(w, http.StatusForbidden, "this server answers its own machine only, not requests for host "+r.Host, "forbidden")
			return
		case sites.Check(r) != nil:
			refuse(w, http.StatusForbidden, "requests from the pages of other sites are refused", "forbidden")
			return
		case !authorized(r, sums):
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "the API key is missing or wrong: send Authorization: Bearer KEY", "invalid_api_key")
			return
		}
		t := &tracked{ResponseWriter: w}
		defer func() {
			switch p := recover(); {
			case p == nil:
			case p == http.ErrAbortHandler:
				panic(p)
			default:
				s.cfg.Log.Error("panic in a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				if t.begun { // half an answer must not look like a whole one
					panic(http.ErrAbortHandler)
				}
				refuse(w, http.StatusInternalServerError, "internal error; the server's log has its cause", "internal_error")
			}
		}()
		next.ServeHTTP(t, r)
	})
}

// authorized compares with every key, so that the time tells nothing.
func authorized(r *http.Request, sums [][32]byte) bool {
	if len(sums) == 0 {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, ok := sha256.Sum256([]byte(token)), 0
	for _, want := range sums {
		ok |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return ok == 1 && strings.EqualFold(scheme, "bearer")
}

// hostOf is the name that a request was sent to, without the port.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.Trim(host, "[]")
}

// tracked notes whether an answer has begun.
type tracked struct {
	http.ResponseWriter
	begun bool
}

func (t *tracked) WriteHeader(status int) {
	t.begun = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracked) Write(b []byte) (int, error) {
	t.begun = true
	return t.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach deadlines and flushing.
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func refuse(w http.ResponseWriter, status int, message, code string) {
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": kind, "code": code, "param": nil}}) // a client that left cannot be told
}
