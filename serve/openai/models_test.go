package openai

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

const (
	deadline = 10 * time.Second
	tick     = 5 * time.Millisecond
)

// saveAdapter writes a random adapter of the served model.
func (s *served) saveAdapter(t *testing.T, dir string, seed uint64) {
	t.Helper()
	a, err := model.NewAdapter(s.m.Config, model.LoRAConfig{Rank: 4, Alpha: 64, Targets: []string{"q_proj", "v_proj", "down_proj"}}, s.m.Digest, seed)
	require.NoError(t, err)
	for i := range a.Params {
		a.Params[i] += float32(math.Sin(float64(i)*0.7+float64(seed))) * 0.2
	}
	require.NoError(t, a.Save(dir, s.m.Config, "tiny"))
}

// vLLM's calls: adapters come and go while the base is served, each changes the
// answer, and unloading one ends its use.
func TestAdaptersWhileServing(t *testing.T) {
	root := t.TempDir()
	s := serveTiny(t, root)
	s.saveAdapter(t, filepath.Join(root, "one"), 1)
	s.saveAdapter(t, filepath.Join(root, "two"), 2)
	ask := func(name string) any {
		status, got := s.post(t, "/v1/completions", obj{"model": name, "prompt": "the store sells", "max_tokens": 12, "temperature": 0, "return_token_ids": true})
		require.Equal(t, 200, status, got)
		return got["choices"].([]any)[0].(obj)["token_ids"]
	}
	base := ask("tiny")
	for _, name := range []string{"one", "two"} {
		status, got := s.post(t, "/v1/load_lora_adapter", obj{"lora_name": name, "lora_path": name})
		require.Equal(t, 200, status, got)
	}
	one, two := ask("one"), ask("two")
	require.NotEqual(t, base, one)
	require.NotEqual(t, one, two)
	require.Equal(t, base, ask("tiny"))

	client := s.client()
	list, err := client.Models.List(context.Background())
	require.NoError(t, err)
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	require.Equal(t, []string{"tiny", "one", "two", s.h.cfg.Encoder.Name}, names)
	card, err := client.Models.Get(context.Background(), "one")
	require.NoError(t, err)
	require.Contains(t, card.RawJSON(), `"parent":"tiny"`)

	for want, body := range map[string]obj{
		"loaded already":         {"lora_name": "one", "lora_path": "two"},
		"name of a served model": {"lora_name": "tiny", "lora_path": "two"},
		"no folder below":        {"lora_name": "x", "lora_path": "../"},
		"give lora_name":         {"lora_name": "x"},
		"base_model_name is":     {"lora_name": "x", "lora_path": "one", "base_model_name": "other"},
		"adapter_config.json":    {"lora_name": "x", "lora_path": "."},
	} {
		status, got := s.post(t, "/v1/load_lora_adapter", body)
		require.Equal(t, 400, status, got)
		require.Contains(t, got["error"].(obj)["message"], want)
	}
	// Places: the policy's and two.
	status, got := s.post(t, "/v1/load_lora_adapter", obj{"lora_name": "three", "lora_path": "one"})
	require.Equal(t, 409, status, got)

	status, _ = s.post(t, "/v1/load_lora_adapter", obj{"lora_name": "one", "lora_path": "two", "load_inplace": true})
	require.Equal(t, 200, status)
	require.Equal(t, two, ask("one"))
	status, _ = s.post(t, "/v1/unload_lora_adapter", obj{"lora_name": "one"})
	require.Equal(t, 200, status)
	status, _ = s.post(t, "/v1/completions", obj{"model": "one", "prompt": "x"})
	require.Equal(t, 404, status)
	status, _ = s.post(t, "/v1/unload_lora_adapter", obj{"lora_name": "one"})
	require.Equal(t, 404, status)
}

func TestAdaptersNeedARoot(t *testing.T) {
	s := serveTiny(t, "")
	status, got := s.post(t, "/v1/load_lora_adapter", obj{"lora_name": "x", "lora_path": "y"})
	require.Equal(t, 403, status)
	require.Contains(t, got["error"].(obj)["message"], "--adapter-root")
}

// A link out of the root is no way out.
func TestAdapterRootIsTheBound(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	s := serveTiny(t, root)
	s.saveAdapter(t, outside, 1)
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	status, got := s.post(t, "/v1/load_lora_adapter", obj{"lora_name": "x", "lora_path": "link"})
	require.Equal(t, 400, status)
	require.Contains(t, got["error"].(obj)["message"], "no folder below")
}

func TestEmbeddings(t *testing.T) {
	s := serveTiny(t, "")
	e := s.h.cfg.Encoder
	ids, err := e.Tokenize("the weather", false)
	require.NoError(t, err)
	want, err := e.Encode(context.Background(), [][]int32{ids})
	require.NoError(t, err)
	client := s.client()
	got, err := client.Embeddings.New(context.Background(), openai.EmbeddingNewParams{Model: e.Name, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"the weather", "a fox"}}})
	require.NoError(t, err)
	require.Len(t, got.Data, 2)
	for i, v := range want[0] {
		require.InDelta(t, v, got.Data[0].Embedding[i], 1e-7)
	}
	status, raw := s.post(t, "/v1/embeddings", obj{"input": ids, "encoding_format": "base64"})
	require.Equal(t, 200, status, raw)
	data, err := base64.StdEncoding.DecodeString(raw["data"].([]any)[0].(obj)["embedding"].(string))
	require.NoError(t, err)
	require.Equal(t, want[0][0], math.Float32frombits(binary.LittleEndian.Uint32(data)))

	for want, body := range map[string]obj{
		"gives no embeddings":   {"model": "tiny", "input": "x"},
		"input has 0 texts":     {"input": []string{}},
		"was not trained to be": {"input": "x", "dimensions": 3},
		`encoding_format "hex"`: {"input": "x", "encoding_format": "hex"},
		"the vocabulary has":    {"input": []int{99999}},
	} {
		status, got := s.post(t, "/v1/embeddings", body)
		require.GreaterOrEqual(t, status, 400, "%v: %v", body, got)
		require.Contains(t, got["error"].(obj)["message"], want)
	}
}

func TestTokenize(t *testing.T) {
	s := serveTiny(t, "")
	status, got := s.post(t, "/tokenize", obj{"prompt": "the store"})
	require.Equal(t, 200, status)
	require.EqualValues(t, 512, got["max_model_len"])
	status, back := s.post(t, "/detokenize", obj{"tokens": got["tokens"]})
	require.Equal(t, 200, status)
	require.Contains(t, back["prompt"], "the store")
	status, chat := s.post(t, "/tokenize", obj{"messages": []obj{{"role": "user", "content": "the store"}}})
	require.Equal(t, 200, status)
	require.Greater(t, chat["count"], got["count"])
	status, _ = s.post(t, "/tokenize", obj{})
	require.Equal(t, 400, status)
}
