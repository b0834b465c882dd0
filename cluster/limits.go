package cluster

import "time"

// blobTime is how long a blob of n bytes may travel, beside the time for an
// answer: as if by a line of 4 MB/s.
func blobTime(n int) time.Duration {
	return time.Duration(n) * time.Second / (4 << 20)
}
