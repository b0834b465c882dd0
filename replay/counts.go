package replay

import (
	"slices"
	"strings"
	"unicode/utf8"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Histograms are kept as sorted lists so that equal states have equal bytes.
// Reasons are free text, so their number and length are bounded.
const (
	maxReasons     = 64
	maxReasonBytes = 120
	otherReason    = "other"
)

// countReason adds one to reason, or to "other" when there are too many.
func countReason(counts []*pb.Count, reason string) []*pb.Count {
	reason = cut(reason, maxReasonBytes)
	if reason == "" {
		reason = "unknown"
	}
	find := func(k string) (int, bool) {
		return slices.BinarySearchFunc(counts, k, func(c *pb.Count, k string) int { return strings.Compare(c.Key, k) })
	}
	i, ok := find(reason)
	if !ok && len(counts) >= maxReasons {
		reason = otherReason
		i, ok = find(reason)
	}
	if !ok {
		counts = slices.Insert(counts, i, &pb.Count{Key: reason})
	}
	counts[i].N++
	return counts
}

// cut shortens s to at most n bytes without splitting a rune.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func countLag(counts []*pb.LagCount, lag uint64) []*pb.LagCount {
	i, ok := slices.BinarySearchFunc(counts, lag, func(c *pb.LagCount, l uint64) int {
		switch {
		case c.Lag < l:
			return -1
		case c.Lag > l:
			return 1
		}
		return 0
	})
	if !ok {
		counts = slices.Insert(counts, i, &pb.LagCount{Lag: lag})
	}
	counts[i].N++
	return counts
}
