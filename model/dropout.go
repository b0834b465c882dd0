package model

import (
	"fmt"
	"math"
)

// Dropout is LoRA dropout as PEFT has it: every adapted projection's A gets its
// own copy of the input, where each number is 0 with probability Rate or else
// divided by 1-Rate; the base's product keeps the whole input (Hu et al. 2021,
// arXiv:2106.09685, section 4.1, with Srivastava et al. 2014, JMLR 15:1929).
//
// Whether a number is dropped is a hash of Key, of all token ids of its sequence
// up to there, of layer, projection and feature, and of nothing else: batches,
// packing, shared prompts, devices and processes cannot change it, a backward
// pass computes it anew, and so does whoever repeats a step. Sequences that begin
// alike are dropped alike as long as they are equal.
type Dropout struct {
	// Rate is the probability p; 0 drops nothing.
	Rate float64
	// Key names the masks: those of one optimizer step (DropoutKey).
	Key uint64
}

// Uses of a run's dropout keys.
const (
	DropoutPolicy = 0
	DropoutCritic = 1 // of ppo
)

// DropoutKey is the key of an optimizer step's masks.
func DropoutKey(seed, use, step uint64) uint64 {
	return mix64(mix64(mix64(seed^0x6c6f72615f647270)+use) + step) // "lora_drp"
}

// check refuses a rate out of range.
func (d Dropout) check() error {
	if !(d.Rate >= 0 && d.Rate < 1) {
		return fmt.Errorf("dropout rate is %v, want 0 (none) or more and below 1", d.Rate)
	}
	return nil
}

// Scale is what stays is multiplied by.
func (d Dropout) Scale() float32 { return float32(1 / (1 - d.Rate)) }

// Threshold is the bound that bits of MaskBits reach where a number stays.
func (d Dropout) Threshold() uint32 { return uint32(math.Round(d.Rate * (1 << 32))) }

// DropoutRows are the keys of the prompt's tokens and of each member's; nil
// without dropout.
func (g PrefixGroup) DropoutRows() (prompt []uint64, members [][]uint64) {
	if g.Dropout.Rate == 0 {
		return nil, nil
	}
	last := make([]uint64, 1+len(g.Members)) // of the prompt and of members
	follow := func(i int, before uint64, tokens []int32) (rows []uint64) {
		last[i] = before
		if rows = appendRows(nil, before, tokens); len(rows) > 0 {
			last[i] = rows[len(rows)-1]
		}
		return rows
	}
	prompt = follow(0, g.Dropout.Key, g.Prompt)
	for i, m := range g.Members {
		members = append(members, follow(i+1, last[m.Parent], m.Tokens))
	}
	return prompt, members
}

// appendRows appends the keys of tokens that follow those whose last key is
// before; a Dropout's Key is before the first token.
func appendRows(rows []uint64, before uint64, tokens []int32) []uint64 {
	for _, id := range tokens {
		before = mix64(before + 0x9e3779b97f4a7c15*(uint64(uint32(id))+1))
		rows = append(rows, before)
	}
	return rows
}

// mix64 is splitmix64's finaliser (Steele, Lea and Flood 2014, OOPSLA,
// figure 16).
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// mix32 is a bijection of 32 bits in which every bit of x changes every bit of
// the result with nearly even odds (Wellons 2018, "lowbias32").
func mix32(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x *= 0x846ca68b
	return x ^ x>>16
}

// dropoutModules number the projections of a layer. A number never changes:
// steps that were recorded are recomputed by it.
var dropoutModules = map[string]uint32{
	"q_proj": 0, "k_proj": 1, "v_proj": 2, "o_proj": 3, "gate_proj": 4, "up_proj": 5, "down_proj": 6, "qkv_proj": 7, "gate_up_proj": 8,
}

// DropoutSite numbers the input of a projection of a layer: 16 a layer.
func DropoutSite(layer int, projection string) uint32 {
	return uint32(layer)*16 + dropoutModules[projection]
}

// MaskKeys are the two halves of a row's key at a site.
func MaskKeys(row uint64, site uint32) (a, b uint32) {
	return mix32(uint32(row) ^ site*0x9e3779b1), mix32(uint32(row>>32) + site*0x85ebca6b)
}

// MaskBits are the bits of one feature of a row at a site: mix32 with a second
// key in its middle. The feature stays where they are at least the Threshold.
func MaskBits(a, b, feature uint32) uint32 {
	x := feature*0x9e3779b1 + a
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x += b
	x *= 0x846ca68b
	return x ^ x>>16
}
