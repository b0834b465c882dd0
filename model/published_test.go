package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Configurations as their makers published them (the fields that matter), with
// the number of weights that the published files hold: shapes and defaults of
// every family at real size.
func TestPublishedModels(t *testing.T) {
	for name, tc := range map[string]struct {
		config  string
		params  int64
		context int
	}{
		"Llama-3.2-1B": {`{"model_type":"llama","attention_bias":false,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu",
			"hidden_size":2048,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"num_attention_heads":32,"num_hidden_layers":16,
			"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
			"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,"vocab_size":128256}`, 1235814400, 131072},
		"Qwen2.5-0.5B": {`{"model_type":"qwen2","hidden_act":"silu","hidden_size":896,"intermediate_size":4864,"max_position_embeddings":32768,
			"max_window_layers":24,"num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,
			"sliding_window":32768,"tie_word_embeddings":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":151936}`, 494032768, 32768},
		"Qwen3-0.6B": {`{"model_type":"qwen3","attention_bias":false,"head_dim":128,"hidden_act":"silu","hidden_size":1024,"intermediate_size":3072,
			"max_position_embeddings":40960,"max_window_layers":28,"num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,
			"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,"use_sliding_window":false,"vocab_size":151936}`, 596049920, 40960},
		"Mistral-7B-v0.1": {`{"model_type":"mistral","hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,
			"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":10000.0,"sliding_window":4096,
			"tie_word_embeddings":false,"vocab_size":32000}`, 7241732096, 32768},
		"Mixtral-8x7B": {`{"model_type":"mixtral","hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,
			"num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":8,"output_router_logits":false,
			"rms_norm_eps":1e-05,"rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,"tie_word_embeddings":false,"vocab_size":32000}`, 46702792704, 32768},
		"Qwen3-30B-A3B": {`{"model_type":"qwen3_moe","attention_bias":false,"decoder_sparse_step":1,"head_dim":128,"hidden_act":"silu","hidden_size":2048,
			"intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],"moe_intermediate_size":768,"norm_topk_prob":true,
			"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,"rms_norm_eps":1e-06,
			"rope_scaling":null,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false,"vocab_size":151936}`, 30532122624, 40960},
		"Phi-3-mini-4k": {`{"model_type":"phi3","attention_bias":false,"embd_pdrop":0.0,"hidden_act":"silu","hidden_size":3072,"intermediate_size":8192,
			"max_position_embeddings":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"original_max_position_embeddings":4096,
			"resid_pdrop":0.0,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"sliding_window":2047,"tie_word_embeddings":false,"vocab_size":32064}`, 3821079552, 4096},
		"phi-4": {`{"model_type":"phi3","attention_bias":false,"hidden_act":"silu","hidden_size":5120,"intermediate_size":17920,"max_position_embeddings":16384,
			"num_attention_heads":40,"num_hidden_layers":40,"num_key_value_heads":10,"original_max_position_embeddings":16384,"rms_norm_eps":1e-05,
			"rope_scaling":null,"rope_theta":250000,"sliding_window":null,"tie_word_embeddings":false,"vocab_size":100352}`, 14659507200, 16384},
		"gemma-2-2b": {`{"model_type":"gemma2","attention_bias":false,"attn_logit_softcapping":50.0,"cache_implementation":"hybrid","final_logit_softcapping":30.0,
			"head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","hidden_size":2304,"intermediate_size":9216,
			"max_position_embeddings":8192,"num_attention_heads":8,"num_hidden_layers":26,"num_key_value_heads":4,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,
			"rope_theta":10000.0,"sliding_window":4096,"vocab_size":256000}`, 2614341888, 8192},
		"gemma-3-1b": {`{"model_type":"gemma3_text","attention_bias":false,"attn_logit_softcapping":null,"cache_implementation":"hybrid","final_logit_softcapping":null,
			"head_dim":256,"hidden_activation":"gelu_pytorch_tanh","hidden_size":1152,"intermediate_size":6912,"max_position_embeddings":32768,
			"num_attention_heads":4,"num_hidden_layers":26,"num_key_value_heads":1,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_local_base_freq":10000,
			"rope_scaling":null,"rope_theta":1000000,"sliding_window":512,"sliding_window_pattern":6,"vocab_size":262144}`, 999885952, 32768},
		"gemma-3-270m": {`{"model_type":"gemma3_text","_sliding_window_pattern":6,"attention_bias":false,"attn_logit_softcapping":null,"final_logit_softcapping":null,
			"head_dim":256,"hidden_activation":"gelu_pytorch_tanh","hidden_size":640,"intermediate_size":2048,"layer_types":["sliding_attention","sliding_attention",
			"sliding_attention","sliding_attention","sliding_attention","full_attention","sliding_attention","sliding_attention","sliding_attention",
			"sliding_attention","sliding_attention","full_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention",
			"sliding_attention","full_attention"],"max_position_embeddings":32768,"num_attention_heads":4,"num_hidden_layers":18,"num_key_value_heads":1,
			"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_local_base_freq":10000.0,"rope_scaling":null,"rope_theta":1000000.0,"sliding_window":512,
			"use_bidirectional_attention":false,"vocab_size":262144}`, 268098176, 32768},
		"SmolLM3-3B": {`{"model_type":"smollm3","attention_bias":false,"hidden_act":"silu","hidden_size":2048,"intermediate_size":11008,"max_position_embeddings":65536,
			"max_window_layers":28,"mlp_bias":false,"no_rope_layer_interval":4,"num_attention_heads":16,"num_hidden_layers":36,"num_key_value_heads":4,
			"pretraining_tp":2,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":5000000.0,"sliding_window":null,"use_sliding_window":false,"vocab_size":128256}`, 3075098624, 65536},
		"SmolLM2-135M": {`{"model_type":"llama","attention_bias":false,"hidden_act":"silu","hidden_size":576,"intermediate_size":1536,"is_llama_config":true,
			"max_position_embeddings":8192,"mlp_bias":false,"num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,"pretraining_tp":1,
			"rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,"vocab_size":49152}`, 134515008, 8192},
	} {
		c := mustParse(t, []byte(tc.config))
		require.Equal(t, tc.params, c.NumParams(), name)
		require.Equal(t, tc.context, c.ContextLimit(), name)
		mem := c.RolloutMemory(2, 100)
		require.Equal(t, 4*tc.params, mem.Weights)
		require.Equal(t, int64(4*2*2*100*c.NumHiddenLayers*kvDim(c)), mem.Cache)
	}
}
