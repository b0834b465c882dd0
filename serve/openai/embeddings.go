package openai

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"net/http"

	"github.com/skein-rl/skein/model/embed"
)

// maxInputs bounds the texts of one embedding request, as OpenAI does.
const maxInputs = 2048

func (h *Handler) embeddings(w http.ResponseWriter, r *http.Request) error {
	var req EmbeddingRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	e := h.cfg.Encoder
	if e == nil {
		return &Error{Message: "no embedding model is served; start the server with --embedding-model", Type: "invalid_request_error", Status: http.StatusNotFound}
	}
	if req.Model != "" && req.Model != e.Name {
		return &Error{Message: "model " + req.Model + " gives no embeddings; use " + e.Name, Type: "invalid_request_error", Status: http.StatusNotFound, Param: ptr("model"), Code: ptr("model_not_found")}
	}
	if n := req.Input.Len(); n == 0 || n > maxInputs {
		return badRequest("input", "input has %d texts, want 1 to %d", n, maxInputs)
	}
	if req.Dimensions != nil && *req.Dimensions != e.Dim() {
		return badRequest("dimensions", "dimensions is %d, %s gives %d and was not trained to be cut", *req.Dimensions, e.Name, e.Dim())
	}
	if req.EncodingFormat != "" && req.EncodingFormat != "float" && req.EncodingFormat != "base64" {
		return badRequest("encoding_format", "encoding_format %q is unknown (have float, base64)", req.EncodingFormat)
	}
	if req.Truncate != nil && *req.Truncate != -1 {
		return badRequest("truncate_prompt_tokens", "truncate_prompt_tokens is %d; only -1 (to what the model takes) is supported", *req.Truncate)
	}
	seqs := req.Input.IDs
	for _, text := range req.Input.Texts {
		ids, err := e.Tokenize(text, req.Truncate != nil)
		if err != nil {
			return badRequest("input", "%v", err)
		}
		seqs = append(seqs, ids)
	}
	vectors, err := e.Encode(r.Context(), seqs)
	if errors.Is(err, embed.ErrTooLong) {
		return badRequest("input", "%v", err)
	} else if err != nil {
		return err
	}
	out := EmbeddingList{Object: "list", Model: e.Name}
	for i, v := range vectors {
		out.Usage.Prompt += len(seqs[i])
		data := any(v)
		if req.EncodingFormat == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			data = base64.StdEncoding.EncodeToString(raw)
		}
		out.Data = append(out.Data, Embedding{Object: "embedding", Index: i, Embedding: data})
	}
	out.Usage.Total = out.Usage.Prompt
	return writeJSON(w, out)
}
