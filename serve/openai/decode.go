package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// MaxBody bounds a request's body in bytes.
const MaxBody = 32 << 20

// badRequest is a 400 that names the parameter.
func badRequest(param, format string, args ...any) *Error {
	e := &Error{Message: fmt.Sprintf(format, args...), Type: "invalid_request_error", Status: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

// decode reads a request strictly: unknown fields are refused by name, since a
// parameter that is ignored in silence changes what an experiment means.
func decode(r *http.Request, dst any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBody))
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			return &Error{Message: fmt.Sprintf("the request body is over %d MiB", MaxBody>>20), Type: "invalid_request_error", Status: http.StatusRequestEntityTooLarge}
		}
		return badRequest("", "reading the request: %v", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return badRequest("", "the request is not a JSON object: %v", err)
	}
	known := jsonFields(reflect.TypeOf(dst).Elem())
	for name, value := range fields {
		if !known[name] && !bytes.Equal(value, []byte("null")) {
			return badRequest(name, "%s is not supported here; remove it", name)
		}
	}
	if err := json.Unmarshal(body, dst); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return badRequest(kind.Field, "%s must not be a JSON %s (want %s)", kind.Field, kind.Value, kind.Type)
		}
		return badRequest("", "%v", err)
	}
	return nil
}

// jsonFields are the names a struct reads, embedded structs included.
func jsonFields(t reflect.Type) map[string]bool {
	out := map[string]bool{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for name := range jsonFields(f.Type) {
				out[name] = true
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[name] = true
	}
	return out
}
