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
		return typeError(err)
	}
	return nil
}

// typeError names the field whose value has another type than it should.
func typeError(err error) *Error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return badRequest("", "%v", err)
	}
	field := strings.TrimPrefix(kind.Field, "Common.") // embedded here, flat in JSON
	return badRequest(field, "%s must not be a JSON %s (want %s)", field, kind.Value, jsonKind(kind.Type))
}

// jsonKind names a Go type as JSON does.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "an integer of " + t.Kind().String()
	}
}

// strictly reads an object inside a request and refuses fields that dst lacks,
// unless they are null.
func strictly(data []byte, at string, dst any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return fmt.Errorf("%s must be an object", at)
	}
	known := jsonFields(reflect.TypeOf(dst).Elem())
	for name, value := range fields {
		if !known[name] && !bytes.Equal(value, []byte("null")) {
			return fmt.Errorf("%s.%s is not supported here; remove it", at, name)
		}
	}
	if err := json.Unmarshal(data, dst); err != nil {
		return fmt.Errorf("%s: %w", at, err)
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
