package sample

// Uniform is the number in [0, 1) that Draw uses for the token at a position,
// for engines that invert the distribution on a device.
func Uniform(seed, position uint64) float64 { return uniform(seed, position) }
