//go:build xla

package xla

// limits are the sizes that programs are compiled for. Few, because each costs a
// second or more of compiling; larger on accelerators, where small products
// leave the device idle.
type limits struct {
	// cache: capacities of KV caches, which grow and shrink with the longest
	// sequence held.
	cache []int
	// prefill: tokens of a row per call; longer rows take several.
	prefill []int
	// rows: rows of a prefill call.
	rows []int
	// steps: the most tokens one decode call can make.
	steps int
	// headRows: rows of a chunk of the head, fewer where a chunk's logits would
	// be more than headNumbers.
	headRows, headNumbers int
}

func limitsOf(device string) limits {
	if device == "cpu" {
		return limits{
			cache:   []int{128, 256, 512, 1024, 2048},
			prefill: []int{16, 64, 256},
			rows:    []int{1, 4},
			steps:   64, headRows: 128, headNumbers: 1 << 23,
		}
	}
	return limits{
		cache:   []int{256, 1024, 2048, 4096, 8192},
		prefill: []int{16, 128, 1024},
		rows:    []int{1, 4, 16},
		steps:   64, headRows: 1024, headNumbers: 1 << 27,
	}
}

// stopSizes are how many stop ids a decode program takes per row.
var stopSizes = []int{4, 16, 64}
