package model

import (
	"os"
	"testing"
)

// BenchmarkOpen loads the model that SKEIN_MODEL names, a .gguf file or a
// folder, and reports MB/s of the file: "all" with tokenizer and digest,
// "weights" only reading and dequantising.
func BenchmarkOpen(b *testing.B) {
	path := os.Getenv("SKEIN_MODEL")
	if path == "" {
		b.Skip("set SKEIN_MODEL to a model to run this")
	}
	info, err := Inspect(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("all", func(b *testing.B) {
		b.SetBytes(info.Bytes)
		for b.Loop() {
			m, err := Open(path)
			if err != nil {
				b.Fatal(err)
			}
			m.Close()
		}
	})
	if info.Format != "gguf" {
		return
	}
	b.Run("weights", func(b *testing.B) {
		b.SetBytes(info.Bytes)
		for b.Loop() {
			g, files, err := openGGUFHeader(path)
			if err != nil {
				b.Fatal(err)
			}
			s, err := g.stored(info.Config, files)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.load(); err != nil {
				b.Fatal(err)
			}
			files.Close()
		}
	})
}
