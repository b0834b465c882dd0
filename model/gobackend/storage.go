package gobackend

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

// Storage says how a backend of this package keeps its matrices: bytes by form
// (f32, bf16, f16, q8, q4). New takes for each projection the smallest form that
// holds every weight exactly, so the form changes speed and memory and no bit of
// a result. It is nil for another backend.
func Storage(b model.Backend) map[string]int64 {
	own, ok := b.(*backend)
	if !ok {
		return nil
	}
	out := map[string]int64{}
	count := func(l linear) { out[l.w.Form().String()] += l.w.Bytes() }
	own.net.linears(count)
	count(own.net.head)
	if !own.m.Config.TieWordEmbeddings {
		count(own.net.embed)
	}
	return out
}

// StorageText is Storage for people: "q4 66 MB, q8 30 MB".
func StorageText(b model.Backend) string {
	forms := Storage(b)
	names := slices.SortedFunc(maps.Keys(forms), func(x, y string) int { return int(forms[y] - forms[x]) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d MB", name, (forms[name]+500_000)/1_000_000)
	}
	return strings.Join(names, ", ")
}
