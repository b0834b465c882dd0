package openai

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
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
	vectors, err := h.encodeTexts(r.Context(), seqs)
	if err != nil {
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

// encodeTexts runs the encoder for one request at a time: it uses every thread.
func (h *Handler) encodeTexts(ctx context.Context, seqs [][]int32) ([][]float32, error) {
	select {
	case h.encoding <- struct{}{}:
		defer func() { <-h.encoding }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	vectors, err := h.cfg.Encoder.Encode(ctx, seqs)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil: // a text too long, an id outside the vocabulary
		return nil, badRequest("input", "%v", err)
	}
	return vectors, nil
}
