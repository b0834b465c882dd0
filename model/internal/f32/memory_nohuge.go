//go:build unix && !linux

package f32

func adviseHuge([]byte) {}
