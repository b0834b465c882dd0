package model

import (
	"maps"
	"slices"
	"strings"
)

// ggufPreDef is a pre-tokenizer that GGUF names instead of spelling it out, as
// tokenizer.json of the models it stands for spells it.
type ggufPreDef struct {
	pre          string
	nfc          bool
	ignoreMerges bool
	bos          bool // a beginning-of-sequence token unless the file says otherwise
}

const (
	byteLevelRegex = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`
	byteLevelPlain = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`
	digitsAlone    = `{"type":"Digits","individual_digits":true}`

	// tails of the patterns that descend from cl100k.
	cl100kTail = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kTail  = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kLower = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	o200kUpper = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`

	llama3Pattern = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` + cl100kTail
	qwen2Pattern  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` + cl100kTail
	qwen35Pattern = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kPattern  = o200kLower + contractions + `?|` + o200kUpper + contractions + `?|\p{N}{1,3}` + o200kTail
	tekkenPattern = o200kLower + `|` + o200kUpper + `|\p{N}` + o200kTail

	deepseekHan    = `[一-龥ࠀ-一가-퟿]+`
	deepseekLetter = `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`
	deepseekV3     = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

var ggufPre = map[string]ggufPreDef{
	"gpt-2":            {pre: byteLevelRegex},
	"smollm":           {pre: sequence(digitsAlone, byteLevelRegex)},
	"command-r":        {pre: sequence(digitsAlone, byteLevelRegex), nfc: true},
	"llama-bpe":        {pre: splits(llama3Pattern), ignoreMerges: true, bos: true},
	"dbrx":             {pre: splits(llama3Pattern)},
	"qwen2":            {pre: splits(qwen2Pattern), nfc: true},
	"deepseek-r1-qwen": {pre: splits(qwen2Pattern)},
	"qwen35":           {pre: splits(qwen35Pattern), nfc: true},
	"gpt-4o":           {pre: splits(o200kPattern)},
	"tekken":           {pre: splits(tekkenPattern), ignoreMerges: true, bos: true},
	"falcon":           {pre: sequence(`{"type":"Punctuation","behavior":"Contiguous"}`, byteLevelRegex, `{"type":"Digits","individual_digits":false}`, split(`[0-9][0-9][0-9]`))},
	"deepseek-coder":   {pre: sequence(split("[\r\n]"), split(`\s?\p{L}+`), split(`\s?\p{P}+`), split(deepseekHan), digitsAlone, byteLevelPlain)},
	"deepseek-llm":     {pre: sequence(split("[\r\n]"), split(deepseekLetter), split(`\s?[!-/:-~！-／：-～‘-‟　-。]+`), split(`\s+$`), split(deepseekHan), digitsAlone, byteLevelPlain)},
	"deepseek-v3":      {pre: sequence(split(`\p{N}{1,3}`), split(`[一-龥぀-ゟ゠-ヿ]+`), split(deepseekV3), byteLevelPlain)},
}

// ggufPreAlias maps other names to those above.
var ggufPreAlias = map[string]string{
	"llama3": "llama-bpe", "llama-v3": "llama-bpe", "falcon3": "llama-bpe", "pixtral": "llama-bpe", "glm4": "llama-bpe",
	"smaug-bpe": "dbrx", "chatglm-bpe": "dbrx",
	"phi-2": "gpt-2", "mpt": "gpt-2", "olmo": "gpt-2", "jina-es": "gpt-2", "jina-de": "gpt-2", "modern-bert": "gpt-2",
	"starcoder": "smollm", "refact": "smollm", "codeshell": "smollm",
	"megrez": "qwen2", "llama4": "gpt-4o", "kanana2": "gpt-4o",
}

// ggufPreNames lists what GGUF names are known.
func ggufPreNames() string {
	return strings.Join(append(slices.Sorted(maps.Keys(ggufPre)), slices.Sorted(maps.Keys(ggufPreAlias))...), ", ")
}

func sequence(steps ...string) string {
	return `{"type":"Sequence","pretokenizers":[` + strings.Join(steps, ",") + `]}`
}

func split(pattern string) string {
	p, err := marshalPlain(pattern)
	if err != nil {
		panic("model: constant pattern: " + err.Error())
	}
	return `{"type":"Split","pattern":{"Regex":` + string(p) + `},"behavior":"Isolated","invert":false}`
}

// splits isolates the matches of one pattern and turns them to bytes.
func splits(pattern string) string { return sequence(split(pattern), byteLevelPlain) }
