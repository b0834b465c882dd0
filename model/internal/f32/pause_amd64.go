package f32

// pause spends n short pauses (n > 0) that leave the core to its other thread.
//
//go:noescape
func pause(n int)
